//! The `abridge` binary: parses the command line, loads the settings, runs the command, and maps errors to exit codes.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread::{self, JoinHandle};

use abridge_proxy::app::{self, Launch};
use abridge_proxy::cli::demo::Demo;
use abridge_proxy::cli::run::{AgentCommand, Args as RunArgs};
use abridge_proxy::cli::{self, Cli, Command, Exit, ServeArgs};
use abridge_proxy::config::{Config, Environment, Sources};
use abridge_proxy::platform::{Allocator, process};
use abridge_proxy::server::DrainOutcome;
use abridge_proxy::telemetry;
use mimalloc as _; // which `Allocator` calls

/// The allocator of glibc is slower, and that of musl, which static programs are linked with, much slower.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// The stack of the thread that runs everything. Its addresses are reserved at the start. The main thread's stack grows instead,
/// and where a limit on addresses stops that, the process ends with SIGSEGV.
const STACK: usize = 8 << 20;

fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(exit) => return exit.into(),
    };
    let main = thread::Builder::new().name("main".to_owned()).stack_size(STACK).spawn(|| run(cli));
    // The panic hook has already printed the panic.
    let Ok(result) = main.map_or_else(|error| Ok(Err(error.into())), JoinHandle::join) else { return Exit::Bug.into() };
    result.unwrap_or_else(|error| {
        cli::print_error(&error);
        Exit::of(&error).into()
    })
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let (sources, replay_policy, is_alone) = (cli.sources(), cli.replay_policy(), cli.is_alone());
    let command = cli.command();
    // The command of a run may use them, and inherits what is refused here.
    if !matches!(command, Command::Run(_)) {
        process::refuse_huge_pages();
    }
    // `doctor` reports load errors itself, and `demo` ignores the settings; all others fail on them.
    let config = Config::load(&sources);
    if is_alone && io::stdout().is_terminal() && io::stderr().is_terminal() {
        // A failed write cannot be reported anywhere.
        let _ = io::stderr().write_all(cli::overview::overview(&sources.variables).as_bytes());
    }
    // `serve` logs them, and `demo` ignores the settings.
    if let (false, Ok(config)) = (matches!(command, Command::Serve(_) | Command::Demo(_)), &config) {
        config.misspelt_variables(&sources.variables).iter().for_each(|sentence| cli::print_warning(sentence));
    }
    let exit = match command {
        Command::Run(args) => return run_beside(args, sources),
        Command::Serve(args) => serve(args, sources, config?),
        Command::Service(command) => cli::service::run(&command, &sources, &config?),
        Command::Setup(args) => cli::setup::run(&args, &sources, &config?),
        Command::Demo(args) => cli::demo::run(args, &sources, &async |config, environment, demo: &mut Demo| {
            Ok(app::serve_beside(config, environment, None, async |url: &str| demo.play(url).await).await?.0)
        }),
        Command::Doctor(args) => cli::doctor::run(&args, &sources, config),
        Command::Rewrite(args) => cli::rewrite::run(&args, &config?),
        Command::Summarize(args) => {
            let config = config?;
            cli::rewrite::summarize(&args, |body| app::manual_summary::summarize(&sources, &config, body))
        }
        Command::Replay(args) => cli::rewrite::replay(&args, &config?, replay_policy),
        Command::Simulate(args) => {
            let (config, asks) = (config?, sources.flags.has_default_upstream());
            let model =
                asks.then(|| app::manual_summary::offline(&sources, &config, cli::print_warning)).transpose()?;
            cli::simulate::run(args, &sources, &config, model.as_deref())
        }
        Command::Explain(args) => cli::explain::run(&args),
        Command::Completions { shell } => cli::print_completions(shell),
        Command::Man { folder } => cli::write_man_pages(&folder),
        Command::CheckConfig => cli::check_config(&sources, &config?),
        Command::Models(args) => cli::models::run(&args, &sources, &config?),
        Command::Store(command) => cli::store::run(&command, &sources, &config?),
        Command::Savings(args) => cli::savings::run(&args, &sources, &config?),
        Command::Status(args) => cli::status::run(&args, &sources, &config?),
        Command::Show(args) => cli::show::run(&args, &sources, &config?),
        Command::Mcp(args) => cli::mcp::run(&args, &sources, &config?),
        Command::Diff(args) => cli::diff::run(&args, &sources, &config?),
        Command::Health(at) => Ok(cli::health::run(&at, &sources, &config?)),
    }?;
    Ok(exit.into())
}

fn run_beside(args: RunArgs, sources: Sources) -> anyhow::Result<ExitCode> {
    cli::run::run(args, sources, &async |config: &Config, environment: &Environment, agent: &mut AgentCommand| {
        app::serve_beside(config, environment, agent.record.clone(), async |url: &str| agent.run(url).await).await
    })
}

fn serve(args: ServeArgs, sources: Sources, config: Config) -> anyhow::Result<Exit> {
    let environment = Environment::read(&sources.variables, &config)?;
    let colour = io::stderr().is_terminal() && !sources.variables.wants_plain_text()?;
    let level = telemetry::init(&config.log, colour, io::stderr)?;
    for sentence in config.misspelt_variables(&sources.variables) {
        tracing::warn!("{sentence}");
    }
    let drained = app::serve(Launch { sources, config, environment, record: args.record, level })?;
    Ok(if drained == DrainOutcome::Complete { Exit::Ok } else { Exit::No })
}

//! The scripted session: an agent that finds out why a build fails, step by step.

use serde::Serialize;

use super::tool_outputs;

/// One scripted answer of the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScriptStep {
    /// The text of the answer.
    pub(super) text: &'static str,
    /// The action that the answer asks for.
    pub(super) action: ScriptAction,
}

/// An action of the model.
#[derive(Clone, Copy, Debug)]
pub(super) enum ScriptAction {
    /// Lists a folder.
    List(&'static str),
    /// Reads the first lines of a file: path and number of lines.
    Read(&'static str, usize),
    /// Runs tests.
    Tests(&'static str),
    /// Runs tests that the user interrupts: target, and the user's words.
    Stopped(&'static str, &'static str),
    /// Runs a command: command line and output.
    Shell(&'static str, &'static str),
    /// Fetches the log of the failed build.
    Log,
    /// Searches the log for [`tool_outputs::CAUSE`], in the history or through abridge.
    LookBack,
    /// Ends the session.
    Done,
}

use ScriptAction::{Done, List, Log, LookBack, Read, Shell, Stopped, Tests};

/// The name of the model.
pub(super) const MODEL: &str = "demo-8k";

/// A tool that the agent offers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tool {
    /// Its name.
    pub(super) name: &'static str,
    /// What it does.
    pub(super) description: &'static str,
    /// The JSON schema of its arguments.
    pub(super) parameters: &'static str,
}

/// The tools that the agent offers.
pub(super) const TOOLS: [Tool; 4] = [
    Tool {
        name: "list_files",
        description: "Lists the files of a folder.",
        parameters: r#"{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}"#,
    },
    Tool {
        name: "read_file",
        description: "Reads a file, the first lines of it.",
        parameters: r#"{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"}},"required":["path"]}"#,
    },
    Tool {
        name: "run_tests",
        description: "Runs the tests of a file or a folder.",
        parameters: r#"{"type":"object","properties":{"target":{"type":"string"}},"required":["target"]}"#,
    },
    Tool {
        name: "bash",
        description: "Runs a command in a shell.",
        parameters: r#"{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}"#,
    },
];

/// The instructions.
pub(super) const INSTRUCTIONS: &str = "You are a coding agent in the repository tidewater, a Python service that computes tide \
    tables. Use the tools. Say in one sentence what you are about to do, and change as little as possible.";

/// The task in the first user message.
pub(super) const TASK: &str = "The build of main fails since this morning, in test_rolls_over_at_midnight, and on my machine it \
    passes. Find out why, fix it, and see the build pass.";

/// The command that fetches the log.
pub(super) const LOG_COMMAND: &str = "gh run view 4127 --log";

/// The script.
pub(super) const SCRIPT: &[ScriptStep] = &[
    ScriptStep { text: "I look at the repository first.", action: List(".") },
    ScriptStep { text: "The README may say how time zones are meant to work.", action: Read("README.md", 40) },
    ScriptStep { text: "Now the workflow that fails.", action: Read(".github/workflows/ci.yml", 60) },
    ScriptStep { text: "And what it installs.", action: Read("pyproject.toml", 60) },
    ScriptStep { text: "This is the code under test.", action: Read("tidewater/clock.py", 80) },
    ScriptStep { text: "And this is the test.", action: Read("tests/test_rollover.py", 60) },
    ScriptStep { text: "Does it pass here?", action: Tests("tests/test_rollover.py") },
    ScriptStep {
        text: "It does. I run the whole suite.",
        action: Stopped("tests", "Stop, the whole suite takes twenty minutes here. Read the code that calls clock.py."),
    },
    ScriptStep { text: "All right, the callers then.", action: Read("tidewater/stations.py", 70) },
    ScriptStep { text: "What has changed lately?", action: Shell("git log --oneline -8", tool_outputs::GIT_LOG) },
    ScriptStep { text: "Nothing that touches time. I fetch the log of the failed build.", action: Log },
    ScriptStep {
        text: "The end of it names the test alone. I go on with the callers.",
        action: Read("tidewater/harmonics.py", 70),
    },
    ScriptStep {
        text: "Who makes time zones?",
        action: Shell("grep -rn ZoneInfo tidewater tests", tool_outputs::GREP_ZONES),
    },
    ScriptStep { text: "The stations do.", action: Tests("tests/test_stations.py") },
    ScriptStep { text: "They pass. The forecast uses them.", action: Read("tidewater/forecast.py", 70) },
    ScriptStep { text: "Is there a cache between them?", action: Read("tidewater/cache.py", 70) },
    ScriptStep { text: "There is one.", action: Tests("tests/test_cache.py") },
    ScriptStep { text: "It is sound. The readings carry the times.", action: Read("tidewater/readings.py", 70) },
    ScriptStep {
        text: "Perhaps the zone of the machine matters.",
        action: Shell(
            "TZ=UTC pytest -q tests/test_rollover.py",
            "....                                    [100%]\n4 passed in 0.21s\n",
        ),
    },
    ScriptStep { text: "It does not. How are times written out?", action: Read("tidewater/export.py", 70) },
    ScriptStep { text: "With their offset. Which tests look at offsets?", action: List("tests") },
    ScriptStep { text: "The forecast's.", action: Read("tests/test_forecast.py", 70) },
    ScriptStep { text: "I run those.", action: Tests("tests/test_forecast.py") },
    ScriptStep { text: "They pass. The API is the last caller.", action: Read("tidewater/api.py", 70) },
    ScriptStep {
        text: "It only passes times on. What is the image of the build?",
        action: Shell("cat Dockerfile.ci", tool_outputs::DOCKERFILE),
    },
    ScriptStep { text: "A slim one. What do the tests set up?", action: Read("tests/conftest.py", 70) },
    ScriptStep { text: "No zone. And the export?", action: Tests("tests/test_export.py") },
    ScriptStep {
        text: "Fine too. Where do zones come from on this machine?",
        action: Shell("pip show tzdata", tool_outputs::PIP_SHOW),
    },
    ScriptStep {
        text: "Here from a wheel. The log said where the build had them from, but that result was cleared. I read it again.",
        action: LookBack,
    },
    ScriptStep {
        text: "That is it: the image has zones of 2021, and the wheel is an extra that the build does not ask for.",
        action: Shell("grep -n tz pyproject.toml", "14:tz = [\"tzdata>=2026.1\"]\n"),
    },
    ScriptStep { text: "I read the place where it belongs.", action: Read("pyproject.toml", 24) },
    ScriptStep {
        text: "The service needs it everywhere, so it becomes a dependency.",
        action: Shell("git apply tz.patch && git diff", tool_outputs::DIFF),
    },
    ScriptStep { text: "Does the test still pass?", action: Tests("tests/test_rollover.py") },
    ScriptStep {
        text: "Yes. And in the image of the build?",
        action: Shell("./ci.sh tests/test_rollover.py", tool_outputs::IN_IMAGE),
    },
    ScriptStep { text: "There too. The rest of the clock.", action: Tests("tests/test_clock.py") },
    ScriptStep { text: "Passes. The documents speak of the extra.", action: Read("docs/time.md", 30) },
    ScriptStep {
        text: "I take that sentence out.",
        action: Shell(
            "sed -i '/extra tz/d' docs/time.md && git diff --stat",
            " docs/time.md   | 1 -\n pyproject.toml | 3 ++-\n 2 files changed, 2 insertions(+), 2 deletions(-)\n",
        ),
    },
    ScriptStep { text: "Readings depend on zones as well.", action: Tests("tests/test_readings.py") },
    ScriptStep {
        text: "All pass. Lints.",
        action: Shell(
            "ruff check . && mypy tidewater",
            "All checks passed!\nSuccess: no issues found in 11 source files\n",
        ),
    },
    ScriptStep { text: "And the harmonics once more.", action: Tests("tests/test_harmonics.py") },
    ScriptStep {
        text: "I commit.",
        action: Shell(
            "git commit -am 'Depend on tzdata'",
            "[main 5c1e0d7] Depend on tzdata\n 2 files changed, 2 insertions(+), 2 deletions(-)\n",
        ),
    },
    ScriptStep {
        text: "And push.",
        action: Shell("git push", "To github.com:tidewater/tidewater.git\n   9a41f02..5c1e0d7  main -> main\n"),
    },
    ScriptStep { text: "Now the build.", action: Shell("gh run watch 4128", tool_outputs::WATCH) },
    ScriptStep {
        text: "The build passes. Its image has time zones of 2021, in which the rule that the test asks for is missing; your \
            machine has them from the wheel tzdata, which was an extra. It is a dependency now.",
        action: Done,
    },
];

/// The arguments of each tool.
#[derive(Serialize)]
#[serde(untagged)]
enum Arguments<'a> {
    List { path: &'a str },
    Read { path: &'a str, lines: usize },
    Tests { target: &'a str },
    Shell { command: &'a str },
}

// === impl ScriptAction ===

impl ScriptAction {
    /// The tool and its arguments. The command of [`LookBack`] depends on what the model sees, and is given.
    pub(super) fn call(self, look_back: &str) -> Option<(&'static str, String)> {
        let (tool, arguments) = match self {
            List(path) => ("list_files", Arguments::List { path }),
            Read(path, lines) => ("read_file", Arguments::Read { path, lines }),
            Tests(target) | Stopped(target, _) => ("run_tests", Arguments::Tests { target }),
            Shell(command, _) => ("bash", Arguments::Shell { command }),
            Log => ("bash", Arguments::Shell { command: LOG_COMMAND }),
            LookBack => ("bash", Arguments::Shell { command: look_back }),
            Done => return None,
        };
        Some((tool, serde_json::to_string(&arguments).unwrap_or_default()))
    }

    /// The output of the tool, if the script has it.
    pub(super) fn output(self) -> Option<String> {
        Some(match self {
            List(path) => tool_outputs::listing(path).to_owned(),
            Read(path, lines) => tool_outputs::file(path, lines),
            Tests(target) => tool_outputs::tests(target),
            Shell(_, output) => output.to_owned(),
            Log => tool_outputs::log(),
            Stopped(..) | LookBack | Done => return None,
        })
    }

    /// The title in the table.
    pub(super) fn title(self) -> String {
        match self {
            List(path) => format!("list {path}"),
            Read(path, _) => format!("read {}", path.rsplit('/').next().unwrap_or(path)),
            Tests(target) => {
                let name = target.rsplit('/').next().unwrap_or(target);
                format!("test {}", name.trim_start_matches("test_").trim_end_matches(".py"))
            }
            Stopped(..) => "user interrupts".to_owned(),
            Shell(command, _) => format!("$ {command}"),
            Log => "the build's log".to_owned(),
            LookBack => "$ curl …/recall/…".to_owned(),
            Done => String::new(),
        }
    }
}

/// The id of the call of a step.
pub(super) fn call_id(step: usize) -> String {
    format!("call_{:02}", step + 1)
}

/// The step whose call has this id.
pub(super) fn step_of_call(call_id: &str) -> Option<usize> {
    call_id.strip_prefix("call_")?.parse::<usize>().ok()?.checked_sub(1)
}

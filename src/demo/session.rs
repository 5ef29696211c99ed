//! What is played: an agent that finds out why a build fails, step by step.

use serde::Serialize;

use super::texts;

/// One answer of the model: what it says, and what it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// What it says.
    pub(super) say: &'static str,
    /// What it does.
    pub(super) act: Act,
}

/// What the model does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// Lists a folder.
    List(&'static str),
    /// Reads a file, the first so many lines of it.
    Read(&'static str, usize),
    /// Runs tests.
    Tests(&'static str),
    /// Runs tests, but the user stops them, and says this.
    Stopped(&'static str, &'static str),
    /// Runs a command, which prints this.
    Shell(&'static str, &'static str),
    /// Fetches the log of the failed build.
    Log,
    /// Looks for [`texts::CAUSE`] in the log, wherever that is by now.
    LookBack,
    /// Nothing more.
    Done,
}

use Act::{Done, List, Log, LookBack, Read, Shell, Stopped, Tests};

/// The model that is asked.
pub(super) const MODEL: &str = "demo-8k";

/// The tools that the agent offers.
pub(super) const TOOLS: &str = r#"[{"type":"function","function":{"name":"list_files","description":"Lists the files of a folder.","parameters":{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}}},{"type":"function","function":{"name":"read_file","description":"Reads a file, the first lines of it.","parameters":{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"}},"required":["path"]}}},{"type":"function","function":{"name":"run_tests","description":"Runs the tests of a file or a folder.","parameters":{"type":"object","properties":{"target":{"type":"string"}},"required":["target"]}}},{"type":"function","function":{"name":"bash","description":"Runs a command in a shell.","parameters":{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}}}]"#;

/// The agent's instructions.
pub(super) const INSTRUCTIONS: &str = "You are a coding agent in the repository tidewater, a Python service that computes tide \
    tables. Use the tools. Say in one sentence what you are about to do, and change as little as possible.";

/// What the user wants.
pub(super) const TASK: &str = "The build of main fails since this morning, in test_rolls_over_at_midnight, and on my machine it \
    passes. Find out why, fix it, and see the build pass.";

/// The command that fetches the log.
pub(super) const LOG_COMMAND: &str = "gh run view 4127 --log";

/// All of it.
pub(super) const SESSION: &[Step] = &[
    Step { say: "I look at the repository first.", act: List(".") },
    Step { say: "The README may say how time zones are meant to work.", act: Read("README.md", 40) },
    Step { say: "Now the workflow that fails.", act: Read(".github/workflows/ci.yml", 60) },
    Step { say: "And what it installs.", act: Read("pyproject.toml", 60) },
    Step { say: "This is the code under test.", act: Read("tidewater/clock.py", 80) },
    Step { say: "And this is the test.", act: Read("tests/test_rollover.py", 60) },
    Step { say: "Does it pass here?", act: Tests("tests/test_rollover.py") },
    Step {
        say: "It does. I run the whole suite.",
        act: Stopped("tests", "Stop, the whole suite takes twenty minutes here. Read the code that calls clock.py."),
    },
    Step { say: "All right, the callers then.", act: Read("tidewater/stations.py", 70) },
    Step { say: "What has changed lately?", act: Shell("git log --oneline -8", texts::GIT_LOG) },
    Step { say: "Nothing that touches time. I fetch the log of the failed build.", act: Log },
    Step {
        say: "The end of it names the test alone. I go on with the callers.",
        act: Read("tidewater/harmonics.py", 70),
    },
    Step { say: "Who makes time zones?", act: Shell("grep -rn ZoneInfo tidewater tests", texts::GREP_ZONES) },
    Step { say: "The stations do.", act: Tests("tests/test_stations.py") },
    Step { say: "They pass. The forecast uses them.", act: Read("tidewater/forecast.py", 70) },
    Step { say: "Is there a cache between them?", act: Read("tidewater/cache.py", 70) },
    Step { say: "There is one.", act: Tests("tests/test_cache.py") },
    Step { say: "It is sound. The readings carry the times.", act: Read("tidewater/readings.py", 70) },
    Step {
        say: "Perhaps the zone of the machine matters.",
        act: Shell(
            "TZ=UTC pytest -q tests/test_rollover.py",
            "....                                    [100%]\n4 passed in 0.21s\n",
        ),
    },
    Step { say: "It does not. How are times written out?", act: Read("tidewater/export.py", 70) },
    Step { say: "With their offset. Which tests look at offsets?", act: List("tests") },
    Step { say: "The forecast's.", act: Read("tests/test_forecast.py", 70) },
    Step { say: "I run those.", act: Tests("tests/test_forecast.py") },
    Step { say: "They pass. The API is the last caller.", act: Read("tidewater/api.py", 70) },
    Step {
        say: "It only passes times on. What is the image of the build?",
        act: Shell("cat Dockerfile.ci", texts::DOCKERFILE),
    },
    Step { say: "A slim one. What do the tests set up?", act: Read("tests/conftest.py", 70) },
    Step { say: "No zone. And the export?", act: Tests("tests/test_export.py") },
    Step { say: "Fine too. Where do zones come from on this machine?", act: Shell("pip show tzdata", texts::PIP_SHOW) },
    Step {
        say: "Here from a wheel. The log said where the build had them from, but that result was cleared. I read it again.",
        act: LookBack,
    },
    Step {
        say: "That is it: the image has zones of 2021, and the wheel is an extra that the build does not ask for.",
        act: Shell("grep -n tz pyproject.toml", "14:tz = [\"tzdata>=2026.1\"]\n"),
    },
    Step { say: "I read the place where it belongs.", act: Read("pyproject.toml", 24) },
    Step {
        say: "The service needs it everywhere, so it becomes a dependency.",
        act: Shell("git apply tz.patch && git diff", texts::DIFF),
    },
    Step { say: "Does the test still pass?", act: Tests("tests/test_rollover.py") },
    Step { say: "Yes. And in the image of the build?", act: Shell("./ci.sh tests/test_rollover.py", texts::IN_IMAGE) },
    Step { say: "There too. The rest of the clock.", act: Tests("tests/test_clock.py") },
    Step { say: "Passes. The documents speak of the extra.", act: Read("docs/time.md", 30) },
    Step {
        say: "I take that sentence out.",
        act: Shell(
            "sed -i '/extra tz/d' docs/time.md && git diff --stat",
            " docs/time.md   | 1 -\n pyproject.toml | 3 ++-\n 2 files changed, 2 insertions(+), 2 deletions(-)\n",
        ),
    },
    Step { say: "Readings depend on zones as well.", act: Tests("tests/test_readings.py") },
    Step {
        say: "All pass. Lints.",
        act: Shell(
            "ruff check . && mypy tidewater",
            "All checks passed!\nSuccess: no issues found in 11 source files\n",
        ),
    },
    Step { say: "And the harmonics once more.", act: Tests("tests/test_harmonics.py") },
    Step {
        say: "I commit.",
        act: Shell(
            "git commit -am 'Depend on tzdata'",
            "[main 5c1e0d7] Depend on tzdata\n 2 files changed, 2 insertions(+), 2 deletions(-)\n",
        ),
    },
    Step {
        say: "And push.",
        act: Shell("git push", "To github.com:tidewater/tidewater.git\n   9a41f02..5c1e0d7  main -> main\n"),
    },
    Step { say: "Now the build.", act: Shell("gh run watch 4128", texts::WATCH) },
    Step {
        say: "The build passes. Its image has time zones of 2021, in which the rule that the test asks for is missing; your \
            machine has them from the wheel tzdata, which was an extra. It is a dependency now.",
        act: Done,
    },
];

/// `{"…": …}` for each tool.
#[derive(Serialize)]
#[serde(untagged)]
enum Arguments<'a> {
    List { path: &'a str },
    Read { path: &'a str, lines: usize },
    Tests { target: &'a str },
    Shell { command: &'a str },
}

// === impl Act ===

impl Act {
    /// The tool, and what it is given. Looking back depends on what the model sees, and is given as a command.
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

    /// What the tool gives back, where that is settled.
    pub(super) fn result(self) -> Option<String> {
        Some(match self {
            List(path) => texts::listing(path).to_owned(),
            Read(path, lines) => texts::file(path, lines),
            Tests(target) => texts::tests(target),
            Shell(_, output) => output.to_owned(),
            Log => texts::log(),
            Stopped(..) | LookBack | Done => return None,
        })
    }

    /// What the table calls it.
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
pub(super) fn step_of(call_id: &str) -> Option<usize> {
    call_id.strip_prefix("call_")?.parse::<usize>().ok()?.checked_sub(1)
}

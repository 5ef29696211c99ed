//! The outputs of the demo's tools: files, test runs and a long log, generated from templates, and the same in each
//! run.

use std::fmt::Write as _;

/// The word in the log that names the cause.
pub(super) const CAUSE: &str = "tzdata";

/// The minimum length of the log, in bytes.
const LOG_BYTES: usize = 60_000;

pub(super) const GIT_LOG: &str = "\
9a41f02 Name the port of Figueira da Foz as its harbour does
41d77c0 Round heights half to even, as the printed tables do
c0ae915 Cache forecasts by station and day
7be2f31 Read constituents from one file a station
e83d0b4 Move to Python 3.12
15f9a6c Export times with their offset
0d2c8e7 Drop the extra dependencies of the old exporter
b6a1140 Run the build in a slim image
";

pub(super) const GREP_ZONES: &str = "\
tidewater/clock.py:7:from zoneinfo import ZoneInfo
tidewater/clock.py:28:    zone = ZoneInfo(station.zone)
tidewater/stations.py:9:from zoneinfo import ZoneInfo, ZoneInfoNotFoundError
tidewater/stations.py:58:        ZoneInfo(row[\"zone\"])
tests/test_rollover.py:5:from zoneinfo import ZoneInfo
tests/test_rollover.py:15:    assert span(date(2026, 3, 29), ZoneInfo(station(port).zone)) == timedelta(hours=23)
tests/test_rollover.py:19:    nuuk = ZoneInfo(station(\"nuuk\").zone)
";

pub(super) const DOCKERFILE: &str = "\
FROM python:3.12-slim-bullseye
RUN apt-get update && apt-get install -y --no-install-recommends git make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml ./
RUN pip install --no-cache-dir -e '.[test]'
COPY . .
CMD [\"pytest\", \"-v\"]
";

pub(super) const PIP_SHOW: &str = "\
Name: tzdata
Version: 2026.1
Summary: Provider of IANA time zone data
Location: /home/ines/tidewater/.venv/lib/python3.12/site-packages
Required-by: pandas
";

pub(super) const DIFF: &str = "\
diff --git a/pyproject.toml b/pyproject.toml
--- a/pyproject.toml
+++ b/pyproject.toml
@@ -7,11 +7,12 @@
 dependencies = [
     \"httpx>=0.28\",
     \"numpy>=2.1\",
+    \"tzdata>=2026.1\",
 ]
 [project.optional-dependencies]
-tz = [\"tzdata>=2026.1\"]
 test = [\"pytest>=8.3\", \"hypothesis>=6.112\"]
";

pub(super) const IN_IMAGE: &str = "\
Building tidewater-ci ... done
Successfully installed httpx-0.28.1 numpy-2.1.3 tidewater-1.9.0 tzdata-2026.1
tests/test_rollover.py ....                                            [100%]
4 passed in 0.34s
";

pub(super) const WATCH: &str = "\
✓ main build · 4128
Triggered via push about 2 minutes ago
JOBS
✓ lint in 41s (ID 11827)
✓ test (3.12) in 12m9s (ID 11828)
✓ Run build with 4128 completed with 'success'
";

const ROOT: &str = "\
.github/workflows/ci.yml
Dockerfile.ci
README.md
ci.sh
docs/time.md
pyproject.toml
tests/
tidewater/api.py
tidewater/cache.py
tidewater/clock.py
tidewater/export.py
tidewater/forecast.py
tidewater/harmonics.py
tidewater/readings.py
tidewater/stations.py
";

const TESTS: &str = "\
tests/conftest.py
tests/test_api.py
tests/test_cache.py
tests/test_clock.py
tests/test_export.py
tests/test_forecast.py
tests/test_harmonics.py
tests/test_readings.py
tests/test_rollover.py
tests/test_stations.py
";

const README: &str = "\
# tidewater

Tide tables for 214 ports, computed from harmonic constituents, for one day or a year.

    tidewater table --port cascais --day 2026-03-29

Times are local to the port. On the day on which summer time begins or ends, a table has 23 or 25 hours, and the first
line of the next day follows the last one of the day before without a gap. Zones come from the IANA database that
`zoneinfo` finds.

## Development

    pip install -e '.[test]'
    pytest

The suite takes a while, since each constituent is checked against the printed tables of the last ten years.
";

const WORKFLOW: &str = "\
name: build
on:
  push:
    branches: [main]
  pull_request:
jobs:
  lint:
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@v4
      - run: pipx run ruff check .
  test:
    runs-on: ubuntu-24.04
    strategy:
      matrix:
        python: ['3.12']
    steps:
      - uses: actions/checkout@v4
      - run: docker build -f Dockerfile.ci -t tidewater-ci .
      - run: docker run --rm tidewater-ci pytest -v
";

const PYPROJECT: &str = "\
[project]
name = \"tidewater\"
version = \"1.9.0\"
description = \"Tide tables from harmonic constituents\"
requires-python = \">=3.12\"
license = { text = \"MIT\" }
dependencies = [
    \"httpx>=0.28\",
    \"numpy>=2.1\",
]

[project.optional-dependencies]
# Machines without zones of their own.
tz = [\"tzdata>=2026.1\"]
test = [\"pytest>=8.3\", \"hypothesis>=6.112\"]

[project.scripts]
tidewater = \"tidewater.api:main\"

[tool.pytest.ini_options]
testpaths = [\"tests\"]

[tool.ruff]
line-length = 100
";

const CLOCK: &str = "\
\"\"\"Days as a port has them: 23, 24 or 25 hours.\"\"\"

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from tidewater.stations import Station

STEP = timedelta(minutes=10)


def midnight(day: date, zone: ZoneInfo) -> datetime:
    \"\"\"The first moment of a day. Where summer time begins at midnight, that is one o'clock.\"\"\"
    start = datetime.combine(day, time.min, tzinfo=zone)
    shown = start.astimezone(UTC).astimezone(zone)
    return start if shown.replace(tzinfo=None) == start.replace(tzinfo=None) else shown


def span(day: date, zone: ZoneInfo) -> timedelta:
    \"\"\"How long a day is.\"\"\"
    return midnight(day + timedelta(days=1), zone).astimezone(UTC) - midnight(day, zone).astimezone(UTC)


def moments(day: date, station: Station) -> Iterator[datetime]:
    \"\"\"Each step of a day, in the port's own time.\"\"\"
    zone = ZoneInfo(station.zone)
    start = midnight(day, zone).astimezone(UTC)
    for n in range(span(day, zone) // STEP):
        yield (start + n * STEP).astimezone(zone)
";

const ROLLOVER: &str = "\
\"\"\"The night in which summer time begins.\"\"\"

from datetime import date, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from tidewater.clock import midnight, moments, span
from tidewater.stations import station


@pytest.mark.parametrize(\"port\", [\"cascais\", \"ponta-delgada\", \"nuuk\"])
def test_has_23_hours(port):
    assert span(date(2026, 3, 29), ZoneInfo(station(port).zone)) == timedelta(hours=23)


def test_rolls_over_at_midnight():
    nuuk = ZoneInfo(station(\"nuuk\").zone)
    first = midnight(date(2026, 3, 29), nuuk)
    steps = list(moments(date(2026, 3, 28), station(\"nuuk\")))
    assert first.utcoffset() == timedelta(hours=-1)
    assert first - steps[-1] == timedelta(minutes=10)
    assert all(b - a == timedelta(minutes=10) for a, b in pairwise(steps))
";

const TIME: &str = "\
# Time

Everything is computed in UTC. Only two places know zones: `clock.py`, which parts days, and `stations.py`, which
checks that a port's zone exists.

Rules change, some of them a few weeks ahead. Greenland has had summer time again since 2024.
Machines without zones install the extra tz.
";

/// The words that modules are generated from.
const NOUNS: [&str; 12] = [
    "constituents",
    "heights",
    "ports",
    "readings",
    "offsets",
    "extremes",
    "gauges",
    "phases",
    "datums",
    "windows",
    "tables",
    "amplitudes",
];
const VERBS: [&str; 8] = ["select", "merge", "order", "check", "shift", "group", "trim", "index"];
const FIELDS: [&str; 6] = ["height", "phase", "speed", "offset", "depth", "lag"];

/// Templates of functions; `VERB`, `NOUN`, `FIELD` and `NUMBER` are replaced.
const FUNCTIONS: [&str; 5] = [
    "def VERB_NOUN(rows: Iterable[Row], *, limit: int = NUMBER) -> list[Row]:
    \"\"\"VERB those NOUN whose FIELD is known, at most `limit` of them.\"\"\"
    known = [row for row in rows if row.FIELD is not None]
    return sorted(known, key=attrgetter(\"FIELD\"))[:limit]


",
    "def NOUN_by_FIELD(rows: Iterable[Row]) -> dict[float, list[Row]]:
    \"\"\"NOUN that share a FIELD, in the order in which they came.\"\"\"
    found: dict[float, list[Row]] = defaultdict(list)
    for row in rows:
        found[round(row.FIELD, NUMBER % 4)].append(row)
    return dict(found)


",
    "@lru_cache(maxsize=NUMBER)
def VERB_NOUN(port: str, day: date) -> tuple[Row, ...]:
    with connect() as db:
        rows = db.execute(\"select * from NOUN where port = ? and day = ?\", (port, day))
        return tuple(Row.of(row) for row in rows if row[\"FIELD\"] >= 0)


",
    "class NOUNError(ValueError):
    \"\"\"A FIELD is out of its range.\"\"\"


def VERB_FIELD(row: Row) -> Row:
    if not -NUMBER <= row.FIELD <= NUMBER:
        raise NOUNError(f\"{row.port}: FIELD {row.FIELD} is not within NUMBER\")
    return replace(row, FIELD=row.FIELD % NUMBER)


",
    "def mean_FIELD(rows: Sequence[Row]) -> float | None:
    \"\"\"None where there are no NOUN.\"\"\"
    if not rows:
        return None
    weights = [1 / (NUMBER + abs(row.lag)) for row in rows]
    return sum(w * row.FIELD for w, row in zip(weights, rows, strict=True)) / sum(weights)


",
];

/// Log lines before the tests; `NUMBER` is replaced.
const BUILD: [&str; 6] = [
    "#9 1.NUMBER Collecting numpy>=2.1 (from tidewater==1.9.0)",
    "#9 2.NUMBER   Downloading numpy-2.1.3-cp312-cp312-manylinux_2_17_x86_64.whl (16.0 MB)",
    "#9 3.NUMBER Building editable for tidewater (pyproject.toml): finished with status 'done'",
    "#7 sha256:NUMBERc81fa02 3.42MB / 28.2MB 0.NUMBERs",
    "#8 0.NUMBER Setting up libcurl3-gnutls:amd64 (7.74.0-1.3+deb11u14) ...",
    "#8 1.NUMBER Get:NUMBER http://deb.debian.org/debian bullseye/main amd64 git amd64 1:2.30.2-1+deb11u2",
];

const CAUSE_LINES: [&str; 3] = [
    "#9 5.412 WARNING: tidewater 1.9.0: tzdata is in the extra 'tz', which was not requested; zones come from the system",
    "#10 0.118 zoneinfo: /usr/share/zoneinfo, tzdata 2021a-1+deb11u1",
    "#10 0.119 zoneinfo: no package tzdata in site-packages",
];

const LOG_END: [&str; 6] = [
    "=================================== FAILURES ===================================",
    "E       assert datetime.timedelta(days=-1, seconds=79200) == datetime.timedelta(days=-1, seconds=82800)",
    "tests/test_rollover.py:22: AssertionError",
    "FAILED tests/test_rollover.py::test_rolls_over_at_midnight - assert datetime.timedelta(days=-1, seconds=79200) ==...",
    "================== 1 failed, 411 passed in 719.08s (0:11:59) ===================",
    "##[error]Process completed with exit code 1.",
];

/// A deterministic pseudo-random generator (xorshift).
struct PseudoRandom(u32);

// === impl PseudoRandom ===

impl PseudoRandom {
    /// A generator seeded by the hash of a name.
    fn seeded_by(name: &str) -> Self {
        Self(name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)) | 1)
    }

    /// The next number, below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0 as usize % n.max(1)
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from.get(self.below(from.len())).copied().unwrap_or_default()
    }
}

// === texts ===

/// The files of a folder.
pub(super) fn listing(path: &str) -> &'static str {
    if path == "tests" { TESTS } else { ROOT }
}

/// The first lines of a file.
pub(super) fn file(path: &str, lines: usize) -> String {
    let text = match path {
        "README.md" => README.to_owned(),
        ".github/workflows/ci.yml" => WORKFLOW.to_owned(),
        "pyproject.toml" => PYPROJECT.to_owned(),
        "tidewater/clock.py" => CLOCK.to_owned(),
        "tests/test_rollover.py" => ROLLOVER.to_owned(),
        "docs/time.md" => TIME.to_owned(),
        _ => module(path, lines),
    };
    text.split_inclusive('\n').take(lines).collect()
}

/// A generated module with at least so many lines.
fn module(path: &str, lines: usize) -> String {
    let mut random = PseudoRandom::seeded_by(path);
    let name = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".py");
    let mut text = format!(
        "\"\"\"What tidewater knows of {name}.\"\"\"\n\nfrom collections import defaultdict\nfrom dataclasses import replace\nfrom functools import lru_cache\nfrom operator import attrgetter\n\nfrom tidewater.store import Row, connect\n\n\n"
    );
    while text.lines().count() < lines {
        let function = random.pick(&FUNCTIONS).replace("NUMBER", &(8 + random.below(120)).to_string());
        let function = function.replace("VERB", random.pick(&VERBS)).replace("NOUN", random.pick(&NOUNS));
        text += &function.replace("FIELD", random.pick(&FIELDS));
    }
    text
}

/// The output of a test run.
pub(super) fn tests(target: &str) -> String {
    let mut random = PseudoRandom::seeded_by(target);
    let n = 14 + random.below(8);
    let mut text = format!(
        "============================= test session starts ==============================\ncollected {n} items\n\n"
    );
    for i in 1..=n {
        let _ = writeln!(text, "{} PASSED [{:>3}%]", test_name(target, &mut random), i * 100 / n);
    }
    let _ = writeln!(
        text,
        "\n============================== {n} passed in {}.{:02}s ==============================",
        random.below(9),
        random.below(100)
    );
    text
}

fn test_name(file: &str, random: &mut PseudoRandom) -> String {
    format!("{file}::test_{}_{}[{}]", random.pick(&VERBS), random.pick(&NOUNS), random.pick(&FIELDS))
}

/// The log of the failed build, with the cause in its middle.
pub(super) fn log() -> String {
    let mut random = PseudoRandom::seeded_by("log");
    let mut text = String::new();
    let (mut seconds, mut n_lines) = (0, 0);
    let mut line = |text: &mut String, words: &str| {
        n_lines += 1;
        seconds += n_lines % 3;
        let _ = writeln!(
            text,
            "test\t2026-03-30T06:{:02}:{:02}.{:03}Z {words}",
            seconds / 60 % 60,
            seconds % 60,
            n_lines * 37 % 1000
        );
    };
    while text.len() < LOG_BYTES / 3 {
        let words = random.pick(&BUILD).replace("NUMBER", &(100 + random.below(900)).to_string());
        line(&mut text, &words);
    }
    for words in CAUSE_LINES {
        line(&mut text, words);
    }
    while text.len() < LOG_BYTES {
        let file = random.pick(&["tests/test_harmonics.py", "tests/test_stations.py", "tests/test_forecast.py"]);
        let words = format!("{} PASSED", test_name(file, &mut random));
        line(&mut text, &words);
    }
    for words in LOG_END {
        line(&mut text, words);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_the_cause_only_in_its_middle() {
        let log = log();
        assert!((60_000..62_000).contains(&log.len()), "{}", log.len());
        let found: Vec<_> = log.match_indices(CAUSE).map(|(at, _)| at).collect();
        assert!(!found.is_empty() && found.iter().all(|at| (10_000..50_000).contains(at)), "{found:?}");
    }

    #[test]
    fn outputs_are_deterministic() {
        assert_eq!(log(), log());
        assert_eq!(file("tidewater/cache.py", 40), file("tidewater/cache.py", 40));
        assert_ne!(file("tidewater/cache.py", 40), file("tidewater/api.py", 40));
    }
}

//! The command as a child process: it has the terminal and the process group of abridge, and gets the signals that
//! abridge gets.

use std::fs::{self, File};
use std::io;
use std::pin::pin;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpgrp, getpid, kill_process, waitpid};
use rustix::termios::tcgetpgrp;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::mpsc;

use crate::tasks::{Tasks, run_blocking};

/// The signals that are passed on. Those that stop a process by default are here, so that abridge stops when the command
/// has stopped and not before.
const PASSED_ON: [Signal; 8] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::TSTP, Signal::CONT];

/// What a terminal sends to all processes of its foreground group, and so to the command itself.
const FROM_TERMINAL: [Signal; 3] = [Signal::INT, Signal::QUIT, Signal::TSTP];

/// The number that a shell adds to that of the signal which ended a command.
const ENDED_BY_SIGNAL: i32 = 128;

/// The signals that abridge gets while the command runs.
#[derive(Debug)]
pub(super) struct Signals(mpsc::Receiver<Signal>);

impl Signals {
    /// Handles the signals from now on. Those that abridge was started to ignore, as `nohup` does, are left ignored, for the
    /// command too.
    pub(super) fn new() -> io::Result<Self> {
        let ignored = ignored_signals();
        let (sender, receiver) = mpsc::channel(PASSED_ON.len());
        let tasks = Tasks::default();
        for signal in PASSED_ON.into_iter().filter(|signal| ignored >> (signal.as_raw() - 1) & 1 == 0) {
            let mut stream = unix::signal(SignalKind::from_raw(signal.as_raw()))?;
            let sender = sender.clone();
            tasks.spawn(async move { while stream.recv().await.is_some() && sender.send(signal).await.is_ok() {} });
        }
        Ok(Self(receiver))
    }
}

/// Runs the command to its end. Returns its exit code, or 128 and the number of the signal that has ended it.
///
/// # Errors
///
/// When the command cannot be started.
pub(super) async fn run(command: &mut Command, signals: &mut Signals) -> io::Result<u8> {
    let child = Pid::from_child(&command.spawn()?);
    let mut waiting = pin!(run_blocking(move || wait(child)));
    loop {
        tokio::select! {
            code = &mut waiting => return code.map_err(io::Error::other)?,
            Some(signal) = signals.0.recv() => pass_on(signal, child),
        }
    }
}

/// Waits for the end of the command. While it is stopped, abridge is stopped as well, so that the shell takes the terminal
/// back.
fn wait(child: Pid) -> io::Result<u8> {
    loop {
        let status = match waitpid(Some(child), WaitOptions::UNTRACED) {
            Ok(Some((_, status))) => status,
            Ok(None) | Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let code = status.exit_status().or(status.terminating_signal().map(|signal| ENDED_BY_SIGNAL + signal));
        if let Some(code) = code {
            return Ok(u8::try_from(code).unwrap_or(u8::MAX));
        }
        if status.stopped() && has_terminal() {
            // The shell continues both, or abridge alone, which passes that on. After a failure abridge serves nobody meanwhile.
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }
}

fn pass_on(signal: Signal, child: Pid) {
    if !(FROM_TERMINAL.contains(&signal) && has_terminal()) {
        // The command may just have ended.
        let _ = kill_process(child, signal);
    }
}

/// Whether this is the foreground group of a terminal.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

/// The signals that this process ignores, a bit for each. Known on Linux; elsewhere none counts as ignored.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

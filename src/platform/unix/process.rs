//! This process and its child: signals, the terminal, memory, priority, and the limit on open files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::future::poll_fn;
use std::io;
use std::process::{Child, Command};
use std::task::Poll;

use rustix::io::Errno;
pub use rustix::process::Signal;
use rustix::process::{Pid, WaitOptions, getpgrp, getpid, kill_process, waitpid};
use rustix::termios::tcgetpgrp;
use tokio::signal::unix::{self, SignalKind};

use crate::platform::SignalAction;

/// The signals that a running command is sent when this process gets them. Those that stop a process by default are here, so
/// that this process stops when the command has stopped and not before.
const PASSED_ON: [Signal; 8] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::TSTP, Signal::CONT];

/// What a terminal sends to all processes of its foreground group, and so to the command itself.
const FROM_TERMINAL: [Signal; 3] = [Signal::INT, Signal::QUIT, Signal::TSTP];

/// The number that a shell adds to that of the signal which ended a command.
const ENDED_BY_SIGNAL: i32 = 128;

/// The signals that ask a proxy for something: SIGHUP, SIGINT and SIGTERM.
#[derive(Debug)]
pub struct ProxySignals(Streams);

/// The signals that are passed on to a command.
#[derive(Debug)]
pub struct CommandSignals(Streams);

type Streams = Vec<(Signal, unix::Signal)>;

// === signals ===

impl ProxySignals {
    /// Handles the signals from now on.
    pub fn new() -> io::Result<Self> {
        streams([Signal::HUP, Signal::INT, Signal::TERM]).map(Self)
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> SignalAction {
        if next(&mut self.0).await == Signal::HUP { SignalAction::Reload } else { SignalAction::Stop }
    }
}

impl CommandSignals {
    /// Handles the signals from now on. Those that this process was started to ignore, as `nohup` does, are left ignored, for
    /// the command too.
    pub fn new() -> io::Result<Self> {
        let ignored = ignored_signals();
        streams(PASSED_ON.into_iter().filter(|signal| ignored >> (signal.as_raw() - 1) & 1 == 0)).map(Self)
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Signal {
        next(&mut self.0).await
    }
}

fn streams(signals: impl IntoIterator<Item = Signal>) -> io::Result<Streams> {
    let stream = |signal: Signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
    signals.into_iter().map(stream).collect()
}

async fn next(streams: &mut Streams) -> Signal {
    poll_fn(|context| {
        let mut received =
            streams.iter_mut().filter_map(|(signal, stream)| stream.poll_recv(context).is_ready().then_some(*signal));
        received.next().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// The signals that this process ignores, a bit for each. Known on Linux; elsewhere none counts as ignored.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

// === a command as a child ===

/// A command by its name, which is looked for in `PATH`.
pub fn command(program: &OsStr) -> Command {
    Command::new(program)
}

/// Waits for the end of a command. Returns its exit code, or 128 and the number of the signal that has ended it. While it is
/// stopped, this process is stopped as well, so that the shell takes the terminal back. Blocks.
pub fn wait(child: &mut Child) -> io::Result<u8> {
    loop {
        let status = match waitpid(Some(Pid::from_child(child)), WaitOptions::UNTRACED) {
            Ok(Some((_, status))) => status,
            Ok(None) | Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let code = status.exit_status().or(status.terminating_signal().map(|signal| ENDED_BY_SIGNAL + signal));
        if let Some(code) = code {
            return Ok(u8::try_from(code).unwrap_or(u8::MAX));
        }
        if status.stopped() && has_terminal() {
            // The shell continues both, or this process alone, which passes that on. After a failure it serves no one meanwhile.
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }
}

/// Sends a signal that this process got to the command with this id, unless the terminal has sent it to both.
pub fn pass_on(signal: Signal, command: u32) {
    let command = i32::try_from(command).ok().and_then(Pid::from_raw);
    if let Some(command) = command.filter(|_| !(FROM_TERMINAL.contains(&signal) && has_terminal())) {
        // The command may just have ended.
        let _ = kill_process(command, signal);
    }
}

/// Whether this is the foreground group of a terminal.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

// === resources ===

/// How much lower a priority is, as `nice` has it: on a busy processor the thread gets a ninth of the time of another one.
/// A thread that serves requests takes most of a processor where many small ones arrive, and it is run as soon as it wakes
/// up only if that is less than its share.
///
/// Only Linux has it for a thread; elsewhere it is that of the whole process.
const LOWERED_BY: i32 = if cfg!(target_os = "linux") { 10 } else { 0 };

/// Lowers the priority of this thread below those that serve requests. A failure is ignored.
pub fn lower_thread_priority() {
    let _present = rustix::process::nice(LOWERED_BY);
}

/// Refuses transparent huge pages, which some Linux systems give to all processes. With them abridge took twice the memory, as
/// its allocator uses a part of each page. A failure is ignored. Commands that this process starts inherit it.
pub fn refuse_huge_pages() {
    #[cfg(target_os = "linux")]
    let _failed = rustix::thread::disable_transparent_huge_pages(true);
}

/// The resident memory of this process, in bytes; `None` without `/proc`.
pub fn resident_memory() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Whether an error says that this process, or the system, has no descriptor left for another file or connection.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn a_thread_has_a_lower_priority_on_linux_and_the_process_keeps_its_own() {
        let nice = || getpriority_process(None).unwrap();
        let before = nice();
        let lowered = thread::spawn(move || {
            lower_thread_priority();
            nice()
        });
        let expected = if cfg!(target_os = "linux") { (before + 10).min(19) } else { before };
        assert_eq!((lowered.join().unwrap(), nice()), (expected, before));
    }

    #[test]
    fn huge_pages_are_refused_on_linux() {
        refuse_huge_pages();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        assert_eq!(status.contains("THP_enabled:\t0"), cfg!(target_os = "linux"));
    }

    #[test]
    fn the_exit_code_is_that_of_the_command_or_128_and_its_signal() {
        let code = |script: &str| wait(&mut command("sh".as_ref()).args(["-c", script]).spawn().unwrap()).unwrap();
        assert_eq!([code("exit 0"), code("exit 7"), code("kill -TERM $$"), code("kill -KILL $$")], [0, 7, 143, 137]);
    }
}

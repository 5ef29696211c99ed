//! This process and its child: events of the console, and the limit on connections.

use std::ffi::OsStr;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::{env, io};

use tokio::signal::windows::{
    CtrlBreak, CtrlC, CtrlClose, CtrlLogoff, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_logoff, ctrl_shutdown,
};

use crate::platform::SignalAction;

/// The extensions of programs, in the order in which they are tried. What npm installs is a `.cmd`.
const EXTENSIONS: [&str; 3] = ["exe", "cmd", "bat"];

/// The error of a process that has too many connections, `WSAEMFILE`, and too many files, `ERROR_TOO_MANY_OPEN_FILES`.
const TOO_MANY: [i32; 2] = [10024, 4];

/// The events that stop a proxy: Ctrl-C, Ctrl-Break, the end of the console, of the session and of the system.
#[derive(Debug)]
pub struct ProxySignals(CtrlC, CtrlBreak, CtrlClose, CtrlLogoff, CtrlShutdown);

/// Keeps Ctrl-C and Ctrl-Break, which the console sends to the command itself, from ending this process.
#[derive(Debug)]
pub struct CommandSignals {
    _ctrl_c: CtrlC,
    _ctrl_break: CtrlBreak,
}

/// A signal that is passed on: there is none.
#[derive(Clone, Copy, Debug)]
pub enum Signal {}

impl ProxySignals {
    /// Handles the events from now on.
    pub fn new() -> io::Result<Self> {
        Ok(Self(ctrl_c()?, ctrl_break()?, ctrl_close()?, ctrl_logoff()?, ctrl_shutdown()?))
    }

    /// Waits for the next one. None asks for a reload.
    pub async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
            _ = self.2.recv() => {}
            _ = self.3.recv() => {}
            _ = self.4.recv() => {}
        }
        SignalAction::Stop
    }
}

impl CommandSignals {
    /// Handles the events from now on.
    pub fn new() -> io::Result<Self> {
        Ok(Self { _ctrl_c: ctrl_c()?, _ctrl_break: ctrl_break()? })
    }

    /// Waits for ever.
    pub async fn next(&mut self) -> Signal {
        pending().await
    }
}

// === a command as a child ===

/// A command by its name, which is looked for in `PATH`: the system by itself finds programs there, and no scripts.
pub fn command(program: &OsStr) -> Command {
    let found = find(Path::new(program), &env::var_os("PATH").unwrap_or_default());
    found.map_or_else(|| Command::new(program), Command::new)
}

/// The program of a bare name, in the first folder that has one.
fn find(program: &Path, folders: &OsStr) -> Option<PathBuf> {
    if program.extension().is_some() || program.components().count() != 1 {
        return None;
    }
    let with = |folder: PathBuf| EXTENSIONS.map(|end| folder.join(program).with_extension(end));
    env::split_paths(folders).flat_map(with).find(|path| path.is_file())
}

/// Waits for the end of a command. Returns its exit code, or 255 for a larger one. Blocks.
pub fn wait(child: &mut Child) -> io::Result<u8> {
    let code = child.wait()?.code();
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

/// Is never called: no signal exists.
pub fn pass_on(signal: Signal, _command: u32) {
    match signal {}
}

// === resources ===

/// Does nothing: the standard library has no priorities.
pub fn lower_thread_priority() {}

/// Does nothing: Windows gives huge pages only to processes that ask for them.
pub fn refuse_huge_pages() {}

/// The resident memory of this process: not known without unsafe code.
pub fn resident_memory() -> Option<u64> {
    None
}

/// Whether an error says that this process has no descriptor left for another file or connection.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| TOO_MANY.contains(&code))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_bare_name_is_looked_for_with_each_extension_in_each_folder() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folders = env::join_paths([one.path(), two.path()]).unwrap();
        fs::write(one.path().join("agent"), "for another shell").unwrap();
        fs::write(two.path().join("agent.cmd"), "").unwrap();
        assert_eq!(find(Path::new("agent"), &folders), Some(two.path().join("agent.cmd")));
        fs::write(two.path().join("agent.exe"), "").unwrap();
        assert_eq!(find(Path::new("agent"), &folders), Some(two.path().join("agent.exe")));
        for not_bare in ["agent.cmd", r".\agent", "none"] {
            assert_eq!(find(Path::new(not_bare), &folders), None, "{not_bare}");
        }
    }
}

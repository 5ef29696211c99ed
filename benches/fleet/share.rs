//! Gives each process a share of a core, by a control group of Linux, so that a machine of few cores compares many processes.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A process that is held to its share until this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    group: PathBuf,
    process: u32,
}

/// Control groups of the first and of the second version.
const FIRST: &str = "/sys/fs/cgroup/cpu";
const SECOND: &str = "/sys/fs/cgroup";

/// How often a process gets its share, in microseconds. With a longer period requests would wait longer for the next one.
const PERIOD: u32 = 10_000;

impl Share {
    /// Holds a process to so many hundredths of a core. It takes root.
    pub(crate) fn of(process: u32, percent: u32) -> io::Result<Self> {
        let quota = PERIOD / 100 * percent;
        let is_first = Path::new(FIRST).join("cpu.cfs_quota_us").exists();
        let group = Path::new(if is_first { FIRST } else { SECOND }).join(format!("abridge-fleet-{process}"));
        if !is_first {
            fs::write(Path::new(SECOND).join("cgroup.subtree_control"), "+cpu")?;
        }
        fs::create_dir(&group)?;
        let share = Self { group, process };
        if is_first {
            share.write("cpu.cfs_period_us", &PERIOD)?;
            share.write("cpu.cfs_quota_us", &quota)?;
        } else {
            share.write("cpu.max", &format!("{quota} {PERIOD}"))?;
        }
        share.write("cgroup.procs", &process)?;
        Ok(share)
    }

    fn write(&self, file: &str, value: &impl ToString) -> io::Result<()> {
        fs::write(self.group.join(file), value.to_string())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // A group without processes can be removed; one that has ended needs no moving.
        let _moved = fs::write(self.group.with_file_name("cgroup.procs"), self.process.to_string());
        let _removed = fs::remove_dir(&self.group);
    }
}

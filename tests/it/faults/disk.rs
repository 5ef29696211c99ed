//! A disk that becomes read-only under a running process, and one that is slow: real ones, as far as the machine lets us.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::upstream_got;
use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::summarizer::{INSTRUCTION, Summarizer, talk};
use crate::support::{Scene, Setup, Upstream, chat, is_static, request, within};

/// Sends conversations until one is edited again.
async fn until_edited(scene: &mut Scene, mut seed: usize) {
    while recalls(&upstream_got(scene, &with_results(&[long_text(seed)])).await).is_empty() {
        seed += 1;
    }
}

fn sh(script: &str) -> bool {
    Command::new("sh").args(["-c", script]).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

/// Runs a command where the process sees its disks.
fn enter(pid: u32, script: &str) {
    assert!(sh(&format!("nsenter -t {pid} -m sh -c '{script}'")), "{script}");
}

// === read-only ===

/// A file system in a file, and where it is mounted, in a mount namespace of the process alone.
struct Disk {
    folder: TempDir,
}

impl Disk {
    /// None where the machine does not let us mount.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("mounted")).unwrap();
        let disk = Self { folder };
        let image = disk.image(1);
        let made = sh(&format!("truncate -s 64M {0} && mkfs.ext4 -q {0}", image.display()));
        let mounts = || sh(&format!("unshare -m --propagation private sh -c '{}'", disk.mount(1)));
        (made && mounts()).then_some(disk)
    }

    fn image(&self, n: usize) -> PathBuf {
        self.folder.path().join(format!("image-{n}"))
    }

    fn mounted(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    fn mount(&self, n: usize) -> String {
        format!("mount -o loop {} {}", self.image(n).display(), self.mounted().display())
    }

    /// What a kernel does whose disk fails: whatever is open for writing, nothing is written any more.
    fn fail(&self, pid: u32) {
        enter(pid, &format!("mount -o remount,abort {}", self.mounted().display()));
    }

    /// The disk, repaired: everything that was on it, in the same place.
    fn come_back(&self, pid: u32) {
        let [broken, repaired] = [1, 2].map(|n| self.image(n).display().to_string());
        enter(pid, &format!("sync {broken}; cp {broken} {repaired} && {}", self.mount(2)));
    }
}

#[tokio::test]
async fn a_disk_that_becomes_read_only_leaves_requests_whole_until_it_is_back() {
    let Some(disk) = Disk::new() else {
        return eprintln!("not run: a file system in a file cannot be mounted here (it takes root and a loop device)");
    };
    let upstream = Upstream::start().await;
    let store = disk.mounted().join("store.redb");
    let setup = Setup::before(&upstream).with(format!("store.path = {store:?}")).in_a_mount_namespace(disk.mount(1));
    let abridge = setup.start().await;
    let client = abridge.connect().await;
    let mut scene = Scene { upstream, abridge, client };
    let first = recalls(&upstream_got(&mut scene, &with_results(&[long_text(0)])).await);
    assert_eq!(first.len(), 1);

    disk.fail(scene.abridge.pid());
    for n in 1..4 {
        let body = with_results(&[long_text(n)]);
        assert_eq!(upstream_got(&mut scene, &body).await, body.as_bytes(), "it goes on whole");
    }
    let alarms = scene.abridge.said("the store failed:", 1).await;
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    // Everything that is open gets the one, what is opened again the other.
    let causes = ["Input/output error", "Read-only file system"];
    assert!(alarms[0].contains("ERROR") && causes.iter().any(|cause| alarms[0].contains(cause)), "{alarms:?}");

    disk.come_back(scene.abridge.pid());
    until_edited(&mut scene, 4).await;
    scene.abridge.says("the store works again", 0).await;
    scene.client.send(request("GET", &first[0], &[])).await;
    assert_eq!(scene.client.reply().await.body, long_text(0));
    assert_eq!(scene.abridge.said("the store failed:", 1).await.len(), 1);
}

// === slow ===

/// How long a request waits for the store at most: far longer than a request takes that does not wait.
const MOST: Duration = Duration::from_secs(4);

/// Lets nothing become durable while a file is there, as a disk does that is busy elsewhere.
const HOLD: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static int held(const char *name, int fd) {
    const char *file = getenv("HELD_WHILE");
    while (file && access(file, F_OK) == 0) usleep(5000);
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(fd);
}

int fsync(int fd) { return held("fsync", fd); }
int fdatasync(int fd) { return held("fdatasync", fd); }
"#;

/// A disk that is slow while it is held.
struct SlowDisk {
    folder: TempDir,
}

impl SlowDisk {
    /// None, with the reason, where there is no C compiler or the program is static.
    fn new() -> Option<Self> {
        if is_static() {
            eprintln!("NOT RUN: the disk is made slow by a library, and none can be preloaded into a static program");
            return None;
        }
        let disk = Self { folder: tempfile::tempdir().unwrap() };
        let source = disk.path("hold.c");
        std::fs::write(&source, HOLD).unwrap();
        let library = disk.path("hold.so");
        let compiled = sh(&format!("cc -shared -fPIC -O1 -o {} {} -ldl", library.display(), source.display()));
        if !compiled {
            eprintln!("NOT RUN: there is no C compiler to make a disk slow with");
        }
        compiled.then_some(disk)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns what the process writes is on it.
    fn under(&self, setup: Setup) -> Setup {
        let [library, hold] = ["hold.so", "hold"].map(|name| self.path(name).display().to_string());
        setup.environment("LD_PRELOAD", library).environment("HELD_WHILE", hold)
    }

    fn hold(&self) {
        std::fs::write(self.path("hold"), "").unwrap();
    }

    fn let_go(&self) {
        std::fs::remove_file(self.path("hold")).unwrap();
    }
}

#[tokio::test]
async fn a_slow_disk_holds_one_request_no_longer_than_it_may_and_then_serves_again() {
    let Some(disk) = SlowDisk::new() else { return };
    let upstream = Upstream::start().await;
    let abridge =
        disk.under(Setup::before(&upstream).with(format!("store.timeout = \"{}s\"", MOST.as_secs()))).start().await;
    let client = abridge.connect().await;
    let mut scene = Scene { upstream, abridge, client };
    let first = recalls(&upstream_got(&mut scene, &with_results(&[long_text(0)])).await);
    assert_eq!(first.len(), 1);

    disk.hold();
    let began = Instant::now();
    let body = with_results(&[long_text(1)]);
    assert_eq!(upstream_got(&mut scene, &body).await, body.as_bytes(), "it goes on whole");
    let waited = began.elapsed();
    assert!(waited >= MOST, "{waited:?}: the disk is not slow");
    assert!(waited < MOST * 4, "{waited:?}: requests wait longer than they may");
    // Those after it do not wait, and what was stored before can still be taken out.
    let began = Instant::now();
    for n in 2..8 {
        let body = with_results(&[long_text(n)]);
        assert_eq!(upstream_got(&mut scene, &body).await, body.as_bytes(), "it goes on whole");
        assert_eq!(recalls(&upstream_got(&mut scene, &with_results(&[long_text(0)])).await), first);
    }
    let waited = began.elapsed();
    assert!(waited < MOST * 4, "{waited:?}: each of the six waits, too");
    let lines = scene.abridge.said("were not stored", 1).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("WARN") && lines[0].contains("store.timeout"), "{lines:?}");
    // What needs no store waits for nothing, and what is stored can be read.
    scene.client.send(request("GET", &first[0], &[])).await;
    assert_eq!(scene.client.reply().await.body, long_text(0));

    disk.let_go();
    until_edited(&mut scene, 4).await;
    // What could not be waited for was written in the end.
    assert_eq!(recalls(&upstream_got(&mut scene, &with_results(&[long_text(1)])).await).len(), 1);
}

#[tokio::test]
async fn a_slow_disk_holds_one_request_for_a_summary_and_not_each() {
    let Some(disk) = SlowDisk::new() else { return };
    let upstream = Summarizer::playing([]).await;
    let setup = Setup::to(upstream.url())
        .with(format!("summarize.instruction = {INSTRUCTION:?}"))
        .with("summarize.trigger = { tokens = 900 }")
        .with("tokens.counter = \"estimate\"")
        // Else the request waits for its token factor, and no summary is tried.
        .with("tokens.calibrate = false")
        .with(format!("store.timeout = \"{}s\"", MOST.as_secs()));
    let abridge = disk.under(setup).start().await;
    let ask = async |seed: usize| {
        let began = Instant::now();
        let mut client = abridge.connect().await;
        client.send(chat(talk(&seed.to_string(), 3))).await;
        let is_summarised = client.reply().await.head.get("x-abridge-edits") == Some("summary=1");
        (is_summarised, began.elapsed())
    };
    assert!(ask(0).await.0);

    disk.hold();
    let (is_summarised, waited) = ask(1).await;
    assert!(!is_summarised && waited >= MOST, "{waited:?}: the disk is not slow");
    assert!(waited < MOST * 4, "{waited:?}: a request waits longer than it may");
    // Those after it do not wait, and cost no call; what there is is used.
    for seed in 2..6 {
        let (is_summarised, waited) = ask(seed).await;
        assert!(!is_summarised && waited < MOST, "{waited:?}: each of them waits, too");
        assert!(ask(0).await.0);
    }
    assert_eq!(upstream.summaries().len(), 2);

    disk.let_go();
    let until_made = async {
        let mut seed = 6;
        while !ask(seed).await.0 {
            seed += 1;
        }
    };
    within("a summary to be made again", until_made).await;
}

#[tokio::test]
async fn a_recall_waits_for_a_slow_disk_no_longer_than_it_may() {
    let Some(disk) = SlowDisk::new() else { return };
    let store = format!("store.path = {:?}\nstore.timeout = \"500ms\"", disk.path("store.redb"));
    let mut scene = Scene::with(&store).await;
    let first = recalls(&upstream_got(&mut scene, &with_results(&[long_text(0)])).await);
    scene.abridge.signal("TERM");
    scene.abridge.exit().await;

    // The next one has nothing of the file in memory.
    scene.abridge = disk.under(Setup::before(&scene.upstream).with(&store)).start().await;
    scene.client = scene.abridge.connect().await;
    disk.hold();
    let body = with_results(&[long_text(1)]);
    assert_eq!(upstream_got(&mut scene, &body).await, body.as_bytes(), "the disk was quick enough");
    // More than may read at a time: each is answered, whether others wait in vain or not.
    for _ in 0..12 {
        scene.client.send(request("GET", &first[0], &[])).await;
        let reply = scene.client.reply().await;
        assert_eq!(reply.head.status(), 503);
        assert!(std::str::from_utf8(&reply.body).unwrap().contains("within 500ms (store.timeout)"), "{reply:?}");
    }
    disk.let_go();
    let read_again = async {
        loop {
            scene.client.send(request("GET", &first[0], &[])).await;
            let reply = scene.client.reply().await;
            if reply.head.status() == 200 {
                return reply.body;
            }
        }
    };
    assert_eq!(within("the disk to serve again", read_again).await, long_text(0));
}

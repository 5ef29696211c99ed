//! A store that is damaged, or cannot be used: abridge serves, says so, and names what is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::metrics::scrape;
use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::{Abridge, OPERATOR, OPERATOR_TOKEN, Scene, Setup, Upstream, binary, chat, request};

/// How a frame of a payload begins.
const PAYLOAD: &[u8] = b"\xABabrp";

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn run(args: &[&str]) -> Ran {
    let output =
        Command::new(binary()).args(args).current_dir("/").env("ABRIDGE_ADMIN_TOKEN", OPERATOR_TOKEN).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    Ran { code: output.status.code(), out, err }
}

/// A command of the store, with the settings of this process.
fn store(abridge: &Path, args: &[&str]) -> Ran {
    run(&[&["store"], args, &["--config", abridge.to_str().unwrap()]].concat())
}

/// What went upstream of a conversation with these texts.
async fn upstream_got(scene: &mut Scene, texts: &[String]) -> Vec<u8> {
    let mut client = scene.abridge.connect().await;
    client.send(chat(with_results(texts))).await;
    let mut call = scene.upstream.request().await;
    let body = call.bytes().await.to_vec();
    call.answer("200 OK", &["connection: close"], "{}").await;
    assert_eq!(client.reply().await.head.status(), 200);
    body
}

async fn get(abridge: &Abridge, target: &str) -> crate::support::wire::Reply {
    let mut client = abridge.connect().await;
    client.send(request("GET", target, &[OPERATOR, "connection: close"])).await;
    client.reply().await
}

async fn stop(abridge: &Abridge) {
    abridge.signal("TERM");
    abridge.exit().await;
}

/// A store with two texts, and the abridge that has stored them and was stopped.
struct Stored {
    folder: TempDir,
    path: PathBuf,
    line: String,
    scene: Scene,
    texts: [String; 2],
    targets: Vec<String>,
}

async fn two_texts() -> Stored {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let line = format!("store.path = '{}'", path.display());
    let mut scene = Scene::with(&line).await;
    let texts = [long_text(1), long_text(2)];
    let targets = recalls(&upstream_got(&mut scene, &texts).await);
    assert_eq!(targets.len(), 2);
    stop(&scene.abridge).await;
    Stored { folder, path, line, scene, texts, targets }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[tokio::test]
async fn a_damaged_payload_is_an_error_by_name_until_its_text_is_sent_again() {
    let Stored { folder: _folder, path, line, mut scene, texts, targets } = two_texts().await;
    assert_eq!(store(scene.abridge.config(), &["verify"]).code, Some(0));

    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(PAYLOAD.len()).position(|window| window == PAYLOAD).unwrap();
    // A bit in its middle.
    bytes[at + 1000] ^= 4;
    fs::write(&path, &bytes).unwrap();
    let verified = store(scene.abridge.config(), &["verify"]);
    assert_eq!(verified.code, Some(1), "{}{}", verified.out, verified.err);

    scene.abridge = Setup::before(&scene.upstream).with(&line).start().await;
    let mut damaged = Vec::new();
    for (target, text) in targets.iter().zip(&texts) {
        let reply = get(&scene.abridge, target).await;
        let handle = target.rsplit('/').next().unwrap();
        let shown = run(&["show", handle, "--at", &format!("http://{}", scene.abridge.address())]);
        if reply.head.status() == 200 {
            assert_eq!(reply.body, text.as_bytes());
            assert_eq!((shown.code, shown.out), (Some(0), text.clone()));
            continue;
        }
        assert_eq!(reply.head.status(), 500);
        assert_eq!(reply.head.get("x-abridge-error"), Some("payload_damaged"));
        let said = String::from_utf8(reply.body.to_vec()).unwrap();
        assert!(said.starts_with("payload_damaged: ") && said.contains(handle), "{said}");
        assert_eq!((shown.code, shown.out.as_str()), (Some(1), ""), "{}", shown.err);
        assert!(shown.err.contains("payload_damaged"), "{}", shown.err);
        assert!(verified.out.contains(&format!("damaged: payload {handle}")), "{}", verified.out);
        scene.abridge.says(&format!("payload {handle}"), 0).await;
        damaged.push((target, text));
    }
    assert_eq!(damaged.len(), 1);
    let scraped = scrape(&scene.abridge).await;
    assert_eq!(scraped.sum("abridge_store_damaged_total"), 2);
    assert_eq!(scraped.sum("abridge_store_errors_total"), 0);

    // The client sends its whole history with each request.
    assert_eq!(recalls(&upstream_got(&mut scene, &texts).await), targets);
    assert_eq!(get(&scene.abridge, damaged[0].0).await.body, damaged[0].1.as_bytes());
    stop(&scene.abridge).await;
    assert_eq!(store(scene.abridge.config(), &["verify"]).code, Some(0));
}

#[tokio::test]
async fn a_file_that_is_no_store_is_set_aside_and_everything_says_so() {
    let Stored { folder, path, line, mut scene, texts, targets } = two_texts().await;
    let mut damaged = fs::read(&path).unwrap();
    damaged[..4096].fill(0);

    for (n, content) in [damaged, b"a letter to my aunt\n".repeat(1000), b"x".to_vec()].into_iter().enumerate() {
        fs::write(&path, &content).unwrap();
        let refused = Setup::before(&scene.upstream).with(&line).with("store.required = true").fail().await;
        assert_eq!(refused.status.code(), Some(69), "{}", refused.stderr);
        assert_eq!(fs::read(&path).unwrap(), content);
        for command in [&["ls"][..], &["stats"], &["verify"]] {
            let ran = store(scene.abridge.config(), command);
            assert_eq!((ran.code, ran.err.lines().count()), (Some(69), 1), "{}", ran.err);
        }

        scene.abridge = Setup::before(&scene.upstream).with(&line).start().await;
        let aside = files(folder.path()).into_iter().rfind(|file| fs::read(file).unwrap() == content);
        let aside = aside.unwrap().to_str().unwrap().to_owned();
        assert!(aside.contains("store.redb.aside-20"), "{aside}");
        let todo = format!("abridge store salvage --from {aside} OUT");
        scene.abridge.says(&todo, 0).await;
        let ready = get(&scene.abridge, "/abridge/readyz").await;
        assert_eq!(ready.head.status(), 200);
        for said in [
            String::from_utf8(ready.body.to_vec()).unwrap(),
            String::from_utf8(get(&scene.abridge, "/abridge/status").await.body.to_vec()).unwrap(),
            run(&["status", "--at", &format!("http://{}", scene.abridge.address())]).out,
        ] {
            assert!(said.contains(&todo), "{said}");
        }
        if n == 0 {
            let unknown = get(&scene.abridge, &targets[0]).await;
            let said = String::from_utf8(unknown.body.to_vec()).unwrap();
            assert!(unknown.head.status() == 404 && said.contains("was damaged"), "{said}");
            assert_eq!(recalls(&upstream_got(&mut scene, &texts[..1]).await), targets[..1], "the same handle");
            let out = folder.path().join("out.redb");
            let salvaged = store(scene.abridge.config(), &["salvage", "--from", &aside, out.to_str().unwrap()]);
            assert!(salvaged.code == Some(0) && salvaged.out.starts_with("copied 2 payloads"), "{}", salvaged.out);
        }
        stop(&scene.abridge).await;
        let doctor = run(&["doctor", "--config", scene.abridge.config().to_str().unwrap()]);
        assert!(doctor.out.contains(&todo), "{}", doctor.out);
    }
    // The salvaged file is a store, in which both texts have their handles.
    let line = format!("store.path = {:?}", folder.path().join("out.redb"));
    let abridge = Setup::before(&scene.upstream).with(line).start().await;
    for (target, text) in targets.iter().zip(&texts) {
        assert_eq!(get(&abridge, target).await.body, text.as_bytes());
    }
}

#[tokio::test]
async fn where_no_store_can_be_made_requests_go_on_whole_and_everything_says_so() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "x").unwrap();
    fs::create_dir(folder.path().join("store.redb")).unwrap();
    // A folder in its place, a file in place of its folder, and a file system that takes no files.
    let places =
        [folder.path().join("store.redb"), folder.path().join("file/store.redb"), "/proc/abridge/store.redb".into()];
    for path in places {
        let line = format!("store.path = {path:?}");
        let mut scene = Scene::with(&line).await;
        let texts = [long_text(1)];
        assert_eq!(upstream_got(&mut scene, &texts).await, with_results(&texts).as_bytes(), "it goes on whole");
        let todo = format!("the store {} cannot be opened; let this user read and write it", path.display());
        scene.abridge.says(&todo, 0).await;
        for said in [
            String::from_utf8(get(&scene.abridge, "/abridge/readyz").await.body.to_vec()).unwrap(),
            run(&["status", "--at", &format!("http://{}", scene.abridge.address())]).out,
        ] {
            assert!(said.contains(&todo), "{said}");
        }
        let refused = Setup::before(&scene.upstream).with(&line).with("store.required = true").fail().await;
        assert_eq!(refused.status.code(), Some(69), "{}", refused.stderr);
    }
    assert_eq!(files(folder.path()).len(), 2, "nothing was moved");
}

#[tokio::test]
async fn a_process_that_finds_the_store_in_use_says_who_has_it_even_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("store.path = {:?}", folder.path().join("store.redb"));
    let upstream = Upstream::start().await;
    for end in ["KILL", "TERM"] {
        let first = Setup::before(&upstream).with(&line).start().await;
        let failed = Setup::before(&upstream).with(&line).fail().await;
        assert_eq!(failed.status.code(), Some(69));
        let holder = format!("in use by another abridge (process {})", first.pid());
        assert!(failed.stderr.contains(&holder), "{holder}: {}", failed.stderr);
        first.signal(end);
        first.exit().await;
    }
    let left: Vec<_> = files(folder.path());
    assert_eq!(left, [folder.path().join("store.redb")]);
}

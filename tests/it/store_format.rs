//! A store outlives its version: the file of an earlier one is read as it is, and requests become what they became then.
//!
//! `fixtures/store/` has a file of each format, and one of before the first release, which is set aside. `UPDATE_FIXTURES=1`
//! writes that of the present format, if there is none.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::summarizer::{INSTRUCTION, Summarizer, talk};
use crate::support::{Setup, binary, chat};

/// The formats that have a file, and `sent.json`: the bodies that went to the upstream while it was written.
const FORMATS: [&str; 1] = ["6"];

/// The format of the builds before, which no release reads.
const EARLIER: &str = "5";

fn fixture(format: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/store").join(format).join(name)
}

/// Writes the file of a format into the folder; the bodies that were sent while it was written.
fn unpack(format: &str, folder: &Path) -> Vec<String> {
    let file = std::fs::read(fixture(format, "store.redb.zst")).unwrap();
    std::fs::write(folder.join("store.redb"), zstd::decode_all(&*file).unwrap()).unwrap();
    serde_json::from_str(&std::fs::read_to_string(fixture(format, "sent.json")).unwrap()).unwrap()
}

/// Runs a command of `abridge store` in the folder, which succeeds.
fn store(folder: &Path, args: &[&str]) {
    let mut command = Command::new(binary());
    command.arg("store").args(args).env("ABRIDGE__STORE__PATH", folder.join("store.redb")).current_dir(folder);
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

fn requests() -> [String; 2] {
    [with_results(&[long_text(1), "short".to_owned(), long_text(2)]), talk("a", 4)]
}

/// Reads back what these bodies name, before a client sends it again, and sends the requests; the bodies that were sent, and
/// how many summaries were asked for.
async fn played(folder: &Path, known: &[String]) -> (Vec<String>, usize) {
    let store = folder.join("store.redb");
    let upstream = Summarizer::playing([]).await;
    let abridge = Setup::to(upstream.url())
        .with(format!("store = {{ path = {:?}, keep_for = \"365d\" }}", store.to_str().unwrap()))
        .with("recall.public_url = \"http://abridge.test\"")
        .with("tokens = { counter = \"estimate\", ask_upstream = false }")
        .with(format!("summarize = {{ instruction = {INSTRUCTION:?}, trigger = {{ messages = 10 }} }}"))
        .with("truncate_tool_results = { max_bytes = 4000 }")
        .with("models = [{ match = \"gpt-4o\", context_window = 1000000 }]")
        .start()
        .await;
    let mut client = abridge.connect().await;
    let handles = known.iter().flat_map(|body| recalls(body.as_bytes()));
    for (handle, text) in handles.zip([long_text(1), long_text(2)]) {
        client.send(format!("GET {handle} HTTP/1.1\r\nhost: abridge.test\r\n\r\n")).await;
        assert_eq!(client.reply().await.body, text);
    }
    for request in requests() {
        client.send(chat(request)).await;
        assert_eq!(client.reply().await.head.status(), 200);
    }
    let sent: Vec<_> = upstream.chats().into_iter().map(|asked| asked.body).collect();
    assert_eq!(sent.iter().flat_map(|body| recalls(body)).count(), 2);
    abridge.signal("TERM");
    abridge.exit().await;
    assert!(!abridge.stderr().iter().any(|line| line.contains("set aside")), "{:?}", abridge.stderr());
    let sent = sent.iter().map(|body| String::from_utf8(body.to_vec()).unwrap()).collect();
    (sent, upstream.summaries().len())
}

#[tokio::test]
async fn a_store_outlives_its_version() {
    let folder = tempfile::tempdir().unwrap();
    let newest = FORMATS.last().unwrap();
    if std::env::var_os("UPDATE_FIXTURES").is_some() && !fixture(newest, "store.redb.zst").exists() {
        let (sent, _) = played(folder.path(), &[]).await;
        std::fs::create_dir_all(fixture(newest, "")).unwrap();
        let file = std::fs::read(folder.path().join("store.redb")).unwrap();
        std::fs::write(fixture(newest, "store.redb.zst"), zstd::encode_all(&*file, 19).unwrap()).unwrap();
        std::fs::write(fixture(newest, "sent.json"), serde_json::to_string_pretty(&sent).unwrap()).unwrap();
    }
    for format in FORMATS {
        let sent = unpack(format, folder.path());
        store(folder.path(), &["verify"]);
        let (now, asked_for) = played(folder.path(), &sent).await;
        assert_eq!(now, sent, "what format {format} holds is found");
        assert_eq!(asked_for, 0, "the summary of format {format} is used");
    }
}

#[tokio::test]
async fn what_a_file_of_an_earlier_build_holds_is_salvaged() {
    let [folder, salvaged] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let sent = unpack(EARLIER, folder.path());
    let path = folder.path().join("store.redb");
    let abridge = Setup::to("http://127.0.0.1:9/v1").with(format!("store.path = {path:?}")).start().await;
    abridge.signal("TERM");
    abridge.exit().await;
    let mut files = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    let aside = files.find(|file| file.to_str().unwrap().contains("store.redb.aside-20")).unwrap();
    let to = salvaged.path().join("store.redb");
    store(folder.path(), &["salvage", "--from", aside.to_str().unwrap(), to.to_str().unwrap()]);
    let (now, asked_for) = played(salvaged.path(), &sent).await;
    assert_eq!((now, asked_for), (sent, 0), "texts and summaries are found");
}

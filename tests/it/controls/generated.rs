//! Generated histories with pins and compactions.

use abridge_proxy::{dialect, planner::Planner, replay::planner_from_toml, span::splice};
use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::json;

use super::{ADDED, DIALECTS, NEVER, OFFERED, Talk, assert_valid, elements, settings, words};
use crate::support::rounds::{Act, Api};

/// A turn of the model.
#[derive(Clone, Debug)]
enum Step {
    /// It reads one of a few files, of so many words.
    Read(usize, usize),
    /// It pins what was read from one of them, or the last result.
    Pin(Option<usize>),
    Compact,
    /// The user says something.
    User,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4_usize, 150..400_usize).prop_map(|(file, n_words)| Step::Read(file, n_words)),
        2 => prop::option::of(0..4_usize).prop_map(Step::Pin),
        1 => Just(Step::Compact),
        1 => Just(Step::User),
    ]
}

/// A read in the history.
struct Read {
    file: usize,
    text: String,
    is_pinned: bool,
    is_cleared: bool,
}

/// The reads of a history, and what the rules make of them where nothing but the model's calls clears.
#[derive(Default)]
struct Rules {
    reads: Vec<Read>,
    keep: usize,
}

impl Rules {
    fn follow(&mut self, step: &Step) {
        match step {
            Step::Pin(file) => {
                if let Some(read) = self.reads.iter_mut().rev().find(|read| file.is_none_or(|file| read.file == file)) {
                    read.is_pinned = true;
                }
            }
            Step::Compact => {
                let n_old = self.reads.len().saturating_sub(self.keep);
                for read in self.reads.iter_mut().take(n_old) {
                    read.is_cleared |= !read.is_pinned;
                }
            }
            Step::Read(..) | Step::User => {}
        }
    }
}

/// The bytes that are sent for a history, and the texts that are stored.
fn sent(planner: &Planner, api: Api, body: &str) -> (String, Vec<String>) {
    let body = Bytes::from(body.to_owned());
    let plan = planner.plan(dialect::for_path(api.path()).unwrap(), &body).unwrap();
    let stored = plan.offloads.iter().map(|one| String::from_utf8(one.payload.bytes().to_vec()).unwrap());
    (String::from_utf8(splice(&body, &plan.splices).concat()).unwrap(), stored.collect())
}

proptest! {
    #[test]
    fn the_history_alone_decides_and_what_is_cleared_stays_so(
        api in select(&DIALECTS[..]),
        tool in select(&[ADDED, OFFERED][..]),
        trigger in prop_oneof![Just(NEVER), 400..8000_usize],
        keep in 0..3_usize,
        keep_reads in select(&[0, 10][..]),
        steps in vec(step(), 1..16),
    ) {
        let toml = format!("tokens.counter = \"estimate\"\n{}", settings(trigger))
            .replace("results = 1", &format!("results = {keep}"))
            .replace("keep_reads = 0", &format!("keep_reads = {keep_reads}"));
        let planner = planner_from_toml(&toml).unwrap();
        let mut talk = if tool == OFFERED { Talk::offering(api) } else { Talk::new(api) };
        let (mut rules, mut before) = (Rules { keep, ..Rules::default() }, Vec::new());
        for step in steps {
            match &step {
                Step::Read(file, n_words) => {
                    let text = words(&format!("read {}", rules.reads.len()), *n_words);
                    let n = rules.reads.len(); // a call that is made again would widen `keep`
                    talk.call("read", json!({"path": format!("src\\{file}.rs"), "offset": n}), &text);
                    rules.reads.push(Read { file: *file, text, is_pinned: false, is_cleared: false });
                }
                Step::Pin(file) => {
                    talk.call(tool, json!({"action": "pin", "result": file.map(|file| format!("src\\{file}"))}), "noted");
                }
                Step::Compact => talk.call(tool, json!({"action": "compact"}), "noted"),
                Step::User => talk.says(&[Act::Say("so far")], "go on"),
            }
            rules.follow(&step);
            let body = talk.body(false);
            let (now, stored) = sent(&planner, api, &body);
            let fresh = sent(&planner_from_toml(&toml).unwrap(), api, &body);
            prop_assert_eq!(&(now.clone(), stored.clone()), &fresh, "the same in, the same out");
            assert_valid(api, &now);
            let (came, now) = (elements(api, &body), elements(api, &now));
            prop_assert_eq!(came.len(), now.len());
            for (n, (came, now)) in came.iter().zip(&now).enumerate() {
                let was: Option<&String> = before.get(n);
                prop_assert!(was.is_none_or(|was| was == came || was == now), "{:?} became {}", was, now);
            }
            for read in &rules.reads {
                let is_whole = now.iter().any(|element| element.contains(&read.text));
                prop_assert!(is_whole || stored.contains(&read.text), "lost: {:.20}", read.text);
                if trigger == NEVER {
                    prop_assert_eq!(is_whole, !read.is_cleared, "{:.20}", read.text);
                }
            }
            // A read that was whole when it was pinned stays so, as long as pins have room: a token has three bytes or more.
            let was_whole = |text: &String| before.iter().any(|element: &String| element.contains(text));
            let pinned: Vec<_> =
                rules.reads.iter().filter(|read| read.is_pinned && was_whole(&read.text)).map(|read| &read.text).collect();
            if pinned.iter().map(|text| text.len()).sum::<usize>() / 3 + 50 * pinned.len() <= trigger / 4 {
                for text in pinned {
                    prop_assert!(now.iter().any(|element| element.contains(text)), "pinned: {:.20}", text);
                }
            }
            before = now;
        }
    }
}

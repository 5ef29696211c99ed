//! What no upstream and no client can bring about: faults of our own.

use super::*;
use crate::body::Budget;
use crate::body::pool::Pool;
use crate::conversation::{CallId, Conversation};
use crate::dialect::ParseError;
use crate::edit::{Language, patch_tool_calls};
use crate::{planner, upstream};

/// A dialect with a bug.
#[derive(Debug)]
struct Panicking;

impl Dialect for Panicking {
    fn name(&self) -> &'static str {
        "panicking"
    }

    fn parse<'a>(&self, _: &'a [u8]) -> Result<Conversation<'a>, ParseError> {
        panic!("a bug");
    }

    fn verify(&self, _: &[u8]) -> Result<(), ParseError> {
        Ok(())
    }

    fn render_tool_result(&self, _: &[u8], _: &CallId<'_>, _: &str) -> Bytes {
        Bytes::new()
    }
}

fn proxy() -> Proxy {
    let policy = Policy::new(&planner::Settings::default(), Language::En, &patch_tool_calls::Settings::default());
    let settings = upstream::Settings { url: "http://127.0.0.1:9".parse().unwrap(), ..upstream::Settings::default() };
    let upstream = Upstream::new(&settings, &upstream::connect::Proxies::default(), None).unwrap();
    let live = Live { policy: Arc::new(policy), upstream, dry_run: false, report_headers: true };
    let limits = Limits { max_body: 1 << 20, pause: LINGER, budget: Budget::new(1 << 20), pool: Pool::default() };
    Proxy::new(live, limits, 1, None, Tasks::default())
}

#[tokio::test]
async fn a_panic_in_an_edit_leaves_the_request_as_it_came() {
    let proxy = proxy();
    for length in [2, HOP_FROM + 1] {
        let body = Bytes::from(vec![b' '; length]);
        let edited = proxy.plan(&proxy.live.load(), &Panicking, body.clone()).await;
        assert_eq!(edited, Edited::untouched(body));
    }
}

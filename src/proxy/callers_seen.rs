//! Whether requests of several callers have come: a text can be read by its handle alone only while there is one. A user
//! of two APIs has a key for each, so a caller of OpenAI's and one of Anthropic's or Google's are one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use http::HeaderMap;

use super::headers::{ANTHROPIC_VERSION, X_GOOG_API_KEY, credential};
use crate::payload::Caller;

/// The callers of this process's requests.
#[derive(Debug, Default)]
pub(super) struct CallersSeen {
    openai: OfApi,
    anthropic: OfApi,
    google: OfApi,
}

/// The API that a request has the fields of.
#[derive(Clone, Copy, Debug)]
enum Api {
    OpenAi,
    Anthropic,
    Google,
}

/// The callers of one API.
#[derive(Debug, Default)]
struct OfApi {
    // The last caller, whose next request changes nothing.
    last: AtomicU64,
    several: AtomicBool,
    history: ArcSwap<History>,
}

#[derive(Clone, Debug, Default)]
struct History {
    last: Option<Seen>,
    // The callers whose credentials have been replaced by newer ones.
    replaced: VecDeque<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    caller: u64,
    expires: bool,
}

/// How many replaced credentials are remembered.
const MAX_REPLACED: usize = 64;

// === impl Api ===

impl Api {
    /// The API that a client speaks, by the header fields that it sends.
    fn of(headers: &HeaderMap) -> Self {
        if headers.contains_key(ANTHROPIC_VERSION) {
            Self::Anthropic
        } else if headers.contains_key(X_GOOG_API_KEY) {
            Self::Google
        } else {
            Self::OpenAi
        }
    }
}

// === impl CallersSeen ===

impl CallersSeen {
    /// Notes the caller of a conversation with these header fields.
    pub(super) fn note(&self, caller: Caller, headers: &HeaderMap) {
        let of_api = match Api::of(headers) {
            Api::OpenAi => &self.openai,
            Api::Anthropic => &self.anthropic,
            Api::Google => &self.google,
        };
        of_api.note(caller.id(), || credential(headers).unwrap_or_default());
    }

    /// Whether an API has more than one caller.
    pub(super) fn are_several(&self) -> bool {
        [&self.openai, &self.anthropic, &self.google].into_iter().any(|api| api.several.load(Ordering::Relaxed))
    }
}

impl OfApi {
    /// A credential that expires and takes the place of another one that does is the same caller's; the earlier one does
    /// not come again.
    fn note<'h>(&self, id: u64, credential: impl FnOnce() -> &'h [u8]) {
        if self.last.load(Ordering::Relaxed) == id || self.several.load(Ordering::Relaxed) {
            return;
        }
        let now = Seen { caller: id, expires: expires(credential()) };
        let mut is_another = false;
        self.history.rcu(|history| {
            let mut history = History::clone(history);
            is_another = !history.follow(now);
            history
        });
        if is_another {
            self.several.store(true, Ordering::Relaxed);
        } else {
            self.last.store(id, Ordering::Relaxed);
        }
    }
}

impl History {
    /// Whether `now` is the caller of before, perhaps with a newer credential.
    fn follow(&mut self, now: Seen) -> bool {
        let Some(before) = self.last.replace(now).filter(|before| before.caller != now.caller) else { return true };
        let is_renewed = before.expires && now.expires && !self.replaced.contains(&now.caller);
        if is_renewed {
            if self.replaced.len() == MAX_REPLACED {
                self.replaced.pop_front();
            }
            self.replaced.push_back(before.caller);
        }
        is_renewed
    }
}

/// Whether a credential is one that its client renews: a JSON Web Token, as Codex sends it with an account of `ChatGPT`, or a token
/// that Claude Code has of an Anthropic account.
fn expires(credential: &[u8]) -> bool {
    let token = credential.strip_prefix(b"Bearer ").unwrap_or(credential);
    token.starts_with(b"eyJ") || token.starts_with(b"sk-ant-oat")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::AUTHORIZATION;

    use super::*;
    use crate::payload::Keys;

    fn several(credentials: &[&str]) -> bool {
        let (seen, keys) = (CallersSeen::default(), Keys::new([7; 32]));
        for credential in credentials {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, credential.parse().unwrap());
            if credential.contains("sk-ant") {
                headers.insert(ANTHROPIC_VERSION, HeaderValue::from_static("2023-06-01"));
            }
            seen.note(keys.caller(credential.as_bytes()), &headers);
        }
        seen.are_several()
    }

    #[test]
    fn one_key_is_one_caller_and_two_keys_are_two() {
        assert!(!several(&[]) && !several(&["Bearer sk-a"; 3]) && !several(&["", ""]));
        assert!(several(&["Bearer sk-a", "Bearer sk-b"]) && several(&["", "Bearer sk-a"]));
        assert!(several(&["Bearer sk-a", "Bearer eyJa"]), "an account beside a key");
    }

    #[test]
    fn a_user_of_two_apis_is_one_caller() {
        assert!(!several(&["Bearer sk-a", "sk-ant-api03-a", "Bearer sk-a"]));
        assert!(several(&["Bearer sk-a", "sk-ant-api03-a", "sk-ant-api03-b"]));
    }

    #[test]
    fn a_token_that_replaces_another_is_the_same_caller_until_that_one_comes_again() {
        let [a, b, c] = ["Bearer eyJa", "Bearer eyJb", "Bearer eyJc"];
        assert!(!several(&[a, a, b, b, c, c]) && !several(&["sk-ant-oat01-a", "sk-ant-oat01-b"]));
        assert!(several(&[a, b, a]) && several(&[a, b, c, a]));
    }
}

//! What abridge takes from the environment besides its settings: proxies, the upstream's key, and whether colour is wanted.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use bytes::Bytes;
use http::HeaderValue;
use http::header::InvalidHeaderValue;
use zeroize::{Zeroize, Zeroizing};

use super::problem::{Place, Wrong};
use super::{Config, Problem};
use crate::upstream::connect::Proxies;

/// The kinds of proxy that can be asked for. `https` and `socks4` are understood, and refused with a reason of their own.
const PROXY_SCHEMES: [&str; 6] = ["http", "https", "socks4", "socks4a", "socks5", "socks5h"];

/// The shortest token of operators.
const SHORTEST_TOKEN: usize = 16;

/// The variables of a process, read once.
#[derive(Clone, Default)]
pub struct Variables(BTreeMap<String, Variable>);

/// The value of a variable, overwritten when it is let go of: any of them may be a key.
#[derive(Clone)]
struct Variable(OsString);

/// What the environment says that no setting does.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The proxies between abridge and the upstream, of `https_proxy`, `http_proxy`, `all_proxy` and `no_proxy`.
    pub proxies: Proxies,
    /// The value of the variable that `upstream.api_key_env` names.
    pub api_key: Option<Secret>,
    /// The value of the variable that `admin.token_env` names.
    pub admin_token: Option<Secret>,
    /// The values of the variables that `[summarize.model]` and `[[summarize.failover]]` name.
    pub summarizer_keys: BTreeMap<String, Secret>,
    /// The folder that a user's programs keep their state in, of `XDG_STATE_HOME` or `HOME`; none if there is neither.
    pub state: Option<PathBuf>,
    /// Whether a terminal shall be written to without colour: `NO_COLOR` is set, or `TERM` is `dumb`.
    pub plain_terminal: bool,
}

/// A text that is never printed, and is overwritten when the last of its clones is gone; they and the headers that are made of
/// it share one buffer.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret(Bytes);

/// What stands before the text in that buffer, so that a header needs no other.
const BEARER: &str = "Bearer ";

// === impl Variables ===

impl Variables {
    /// The variables of this process. Names that are not UTF-8 are none of ours, and left out.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub fn of_process() -> Self {
        let read = std::env::vars_os().map(|(name, value)| (name, Variable(value)));
        Self(read.filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, Problem> {
        self.0
            .get(name)
            .map(|value| value.0.to_str().ok_or_else(|| of_variable(name, "its value is not UTF-8")))
            .transpose()
    }

    /// The secret in a variable, if it is set.
    pub fn secret(&self, name: &str) -> Result<Option<Secret>, Problem> {
        let is_set = self.first_of(&[name])?.is_some();
        is_set.then(|| Secret::read(self, name, "it is sent as a bearer token")).transpose()
    }

    /// Whether the terminal is to get no colours.
    pub fn ask_for_plain_text(&self) -> Result<bool, Problem> {
        let no_colour = self.first_of(&["NO_COLOR"])?.is_some();
        Ok(no_colour || self.first_of(&["TERM"])?.is_some_and(|(_, term)| term == "dumb"))
    }

    /// The first of the variables that is set and not empty.
    fn first_of<'a>(&'a self, names: &[&'a str]) -> Result<Option<(&'a str, &'a str)>, Problem> {
        for name in names {
            if let Some(text) = self.text(name)?.map(str::trim).filter(|text| !text.is_empty()) {
                return Ok(Some((name, text)));
            }
        }
        Ok(None)
    }
}

impl<N: Into<String>, V: Into<OsString>> FromIterator<(N, V)> for Variables {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), Variable(value.into()))).collect())
    }
}

impl Drop for Variable {
    fn drop(&mut self) {
        std::mem::take(&mut self.0).into_encoded_bytes().zeroize();
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Variables({} of them)", self.0.len())
    }
}

// === impl Environment ===

impl Environment {
    /// What the variables say to these settings.
    pub fn read(variables: &Variables, config: &Config) -> anyhow::Result<Self> {
        let key = |name, setting| Secret::read(variables, name, setting);
        let api_key = config.upstream.api_key_env.as_deref();
        let api_key =
            api_key.map(|name| key(name, "upstream.api_key_env names it for the upstream's key")).transpose()?;
        let admin_token = config.admin.token_env.as_deref().map(|name| token(variables, name)).transpose()?;
        let endpoints = config.summarize.model.iter().chain(&config.summarize.failover);
        let names = endpoints.filter_map(|endpoint| endpoint.api_key_env.as_deref());
        let summarizer_keys = names
            .map(|name| Ok((name.to_owned(), key(name, "api_key_env of [summarize] names it for a model's key")?)))
            .collect::<Result<_, Problem>>()?;
        let (state, plain_terminal) = (state(variables), variables.ask_for_plain_text()?);
        Ok(Self { proxies: proxies(variables)?, api_key, admin_token, summarizer_keys, state, plain_terminal })
    }
}

/// The token of operators. A short one could be found by trying.
fn token(variables: &Variables, name: &str) -> Result<Secret, Problem> {
    let token = Secret::read(variables, name, "admin.token_env names it for the token of operators")?;
    if token.expose().len() < SHORTEST_TOKEN {
        let message = format!(
            "shorter than {SHORTEST_TOKEN} characters, so it could be guessed; allowed: a longer one, such as `openssl rand -hex 32` prints"
        );
        return Err(of_variable(name, &message));
    }
    Ok(token)
}

/// As the XDG rules have it: a path that is not absolute does not count.
fn state(variables: &Variables) -> Option<PathBuf> {
    let folder = |name| variables.0.get(name).map(|value| PathBuf::from(&value.0)).filter(|path| path.is_absolute());
    folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))
}

/// The proxies that the usual variables name. Lower case wins over upper case.
fn proxies(variables: &Variables) -> Result<Proxies, Problem> {
    // Where requests are answered by processes, a client's `Proxy` header is in HTTP_PROXY.
    let of_a_request = variables.text("REQUEST_METHOD")?.is_some();
    let http: &[&str] = if of_a_request { &["http_proxy"] } else { &["http_proxy", "HTTP_PROXY"] };
    Ok(Proxies {
        all: proxy(variables, &["all_proxy", "ALL_PROXY"])?,
        http: proxy(variables, http)?,
        https: proxy(variables, &["https_proxy", "HTTPS_PROXY"])?,
        no: variables.first_of(&["no_proxy", "NO_PROXY"])?.map(|(_, hosts)| hosts.to_owned()),
    })
}

/// A proxy's URL. One that nobody could use is refused here: further on it would be passed over, and requests that are
/// meant to go through a proxy would go without.
fn proxy(variables: &Variables, names: &[&str]) -> Result<Option<String>, Problem> {
    let Some((name, url)) = variables.first_of(names)? else { return Ok(None) };
    let (scheme, host) = url.split_once("://").unwrap_or(("http", url));
    let host = host.trim_end_matches('/');
    if PROXY_SCHEMES.contains(&scheme) && host.parse::<http::uri::Authority>().is_ok() {
        return Ok(Some(url.to_owned()));
    }
    Err(of_variable(
        name,
        "not the URL of a proxy; allowed: http://host:port, socks5://host:port, with user:password@ if need be",
    ))
}

// === impl Secret ===

impl Secret {
    /// The text itself.
    pub fn expose(&self) -> &str {
        let text = self.0.get(BEARER.len()..).unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
    }

    /// The header that shows it, without another copy. No log prints it, and HTTP/2 puts it into no table.
    pub fn bearer(&self) -> Result<HeaderValue, InvalidHeaderValue> {
        let mut value = HeaderValue::from_maybe_shared(self.0.clone())?;
        value.set_sensitive(true);
        Ok(value)
    }

    fn new(text: &str) -> Self {
        // Of its full length from the start: a buffer that grows leaves what it had behind.
        let mut buffer = Zeroizing::new(Vec::with_capacity(BEARER.len() + text.len()));
        buffer.extend_from_slice(BEARER.as_bytes());
        buffer.extend_from_slice(text.as_bytes());
        Self(Bytes::from_owner(buffer))
    }

    fn read(variables: &Variables, name: &str, named_by: &str) -> Result<Self, Problem> {
        let wrong = |what| of_variable(name, &format!("{what}; {named_by}"));
        let text = variables.text(name)?.ok_or_else(|| wrong("not set"))?;
        match text {
            "" => Err(wrong("empty")),
            _ if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Self::new(text)),
            _ => Err(wrong("holds a blank, a line break or another character that is in no key")),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

fn of_variable(name: &str, message: &str) -> Problem {
    Problem::new(Place::Variable(name.into()), Wrong::Other(message.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)], api_key_env: Option<&str>) -> Result<Environment, String> {
        let mut config = Config::default();
        config.upstream.api_key_env = api_key_env.map(str::to_owned);
        let variables = variables.iter().copied().collect();
        Environment::read(&variables, &config).map_err(|error| error.to_string())
    }

    #[test]
    fn lower_case_proxies_win_and_empty_ones_do_not_count() {
        let proxies = read(
            &[
                ("http_proxy", ""),
                ("HTTP_PROXY", "http://upper"),
                ("https_proxy", "http://lower"),
                ("HTTPS_PROXY", "http://upper"),
                ("ALL_PROXY", "socks5h://all"),
                ("no_proxy", "localhost,.internal"),
            ],
            None,
        );
        let expected = Proxies {
            all: Some("socks5h://all".into()),
            http: Some("http://upper".into()),
            https: Some("http://lower".into()),
            no: Some("localhost,.internal".into()),
        };
        assert_eq!(proxies.unwrap().proxies, expected);
    }

    #[test]
    fn a_request_cannot_name_our_proxy() {
        let both = [("REQUEST_METHOD", "GET"), ("HTTP_PROXY", "http://evil"), ("HTTPS_PROXY", "http://ours")];
        let proxies = read(&both, None).unwrap().proxies;
        assert_eq!((proxies.http, proxies.https.as_deref()), (None, Some("http://ours")));
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_not_passed_over() {
        for good in ["proxy:3128", "http://proxy:3128/", "http://me:pw@proxy", "socks5h://[::1]:1080", "10.0.0.1"] {
            assert_eq!(read(&[("https_proxy", good)], None).unwrap().proxies.https.as_deref(), Some(good));
        }
        for bad in ["ftp://me:secret@proxy", "http://", "http://a b", "http//proxy:3128:1"] {
            let error = read(&[("ALL_PROXY", bad)], None).unwrap_err();
            assert!(
                error.starts_with("ALL_PROXY: not the URL of a proxy; allowed: ") && !error.contains("secret"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_key_must_be_there_and_fit_into_a_header() {
        let tail = "; upstream.api_key_env names it for the upstream's key";
        assert_eq!(read(&[], Some("KEY")).unwrap_err(), format!("KEY: not set{tail}"));
        assert_eq!(read(&[("KEY", "")], Some("KEY")).unwrap_err(), format!("KEY: empty{tail}"));
        for bad in ["a\nb", "a b", "ключ"] {
            let error = read(&[("KEY", bad)], Some("KEY")).unwrap_err();
            assert_eq!(error, format!("KEY: holds a blank, a line break or another character that is in no key{tail}"));
        }
        assert_eq!(read(&[("KEY", "sk-1")], Some("KEY")).unwrap().api_key.unwrap().expose(), "sk-1");
        assert!(read(&[("KEY", "sk-1")], None).unwrap().api_key.is_none());
    }

    #[test]
    fn each_summarizer_has_a_key_of_its_own() {
        let endpoint = |env: Option<&str>| crate::edit::summarize::Endpoint {
            base_url: "http://h".to_owned(),
            model: "m".to_owned(),
            api_key_env: env.map(str::to_owned),
        };
        let mut config = Config::default();
        config.summarize.model = Some(endpoint(Some("ONE")));
        config.summarize.failover = vec![endpoint(None), endpoint(Some("TWO"))];
        let read = |variables: &[(&str, &str)]| Environment::read(&variables.iter().copied().collect(), &config);
        let keys = read(&[("ONE", "sk-1"), ("TWO", "sk-2")]).unwrap().summarizer_keys;
        let keys: Vec<_> = keys.iter().map(|(name, key)| (name.as_str(), key.expose())).collect();
        assert_eq!(keys, [("ONE", "sk-1"), ("TWO", "sk-2")]);
        let error = read(&[("ONE", "sk-1")]).unwrap_err().to_string();
        assert_eq!(error, "TWO: not set; api_key_env of [summarize] names it for a model's key");
    }

    #[test]
    fn state_is_where_the_user_wants_it_or_at_home() {
        let state = |variables: &[(&str, &str)]| read(variables, None).unwrap().state;
        let home = ("HOME", "/home/me");
        assert_eq!(state(&[home, ("XDG_STATE_HOME", "/state")]), Some("/state".into()));
        assert_eq!(state(&[home, ("XDG_STATE_HOME", "state")]), Some("/home/me/.local/state".into()));
        assert_eq!(state(&[home]), Some("/home/me/.local/state".into()));
        assert_eq!(state(&[("HOME", "")]), None);
    }

    #[test]
    fn nothing_secret_is_printed() {
        let variables = [("KEY", "sk-1"), ("HTTPS_PROXY", "http://me:sk-1@proxy")];
        let environment = read(&variables, Some("KEY")).unwrap();
        let variables: Variables = variables.into_iter().collect();
        let printed = format!("{environment:?} {variables:?}");
        assert!(!printed.contains("sk-1"), "{printed}");
    }

    #[test]
    fn a_header_is_the_secret_itself_and_prints_nothing() {
        let environment = read(&[("KEY", "sk-1")], Some("KEY")).unwrap();
        let key = environment.api_key.unwrap();
        let header = key.bearer().unwrap();
        assert_eq!(header, "Bearer sk-1");
        assert!(header.is_sensitive());
        assert_eq!(format!("{header:?} {key:?}"), "Sensitive ***");
        assert_eq!(header.as_bytes().as_ptr(), key.bearer().unwrap().as_bytes().as_ptr(), "no copies");
    }
}

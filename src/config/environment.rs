//! Values from the environment that are not settings: proxies, keys, the state folder, and whether colour is wanted.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use http::HeaderValue;
use http::header::InvalidHeaderValue;
use zeroize::{Zeroize, Zeroizing};

use super::error::SourceLocation;
use super::operator_token;
use super::{Config, ConfigError};
use crate::handler::Handler;
use crate::platform::files::{HOME, state_folder};
use crate::store::engine::Options;
use crate::store::{self, secret::Secrets};
use crate::upstream::connect::Proxies;
use crate::upstream::target::{BaseUrl, BaseUrlError};
use crate::upstream::{KeyHeader, routes};

/// The accepted proxy schemes. `https` and `socks4` pass this check and are refused later with their own message.
const PROXY_SCHEMES: [&str; 6] = ["http", "https", "socks4", "socks4a", "socks5", "socks5h"];

/// The minimum length of the operators' token, in bytes.
const MIN_TOKEN_BYTES: usize = 16;

/// The environment variables of a process, read once.
#[derive(Clone, Default, derive_more::Debug)]
#[debug("Variables({} of them)", _0.len())]
pub struct Variables(BTreeMap<String, Variable>);

/// The value of a variable. It is overwritten when it is dropped, as it may be a key.
#[derive(Clone)]
struct Variable(OsString);

/// Values from the environment that are not settings.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The proxies between abridge and the upstream, from `https_proxy`, `http_proxy`, `all_proxy` and `no_proxy`.
    pub proxies: Proxies,
    /// The keys of upstreams and of the models of `[summarize]`, by the variables that `api_key_env` names.
    pub model_keys: BTreeMap<String, Secret>,
    /// The operators' token: the value of the variable that `admin.token_env` names, or what
    /// [`Self::make_operator_token`] has made.
    pub operator_token: Option<Secret>,
    /// The keys of `[handlers]`, by the name of the handler.
    pub handler_keys: BTreeMap<String, Secret>,
    /// The value of the variable that `store.url_env` names.
    pub store_url: Option<Secret>,
    /// The values of the variables that `store.secret_env` and `store.old_secrets_env` name.
    pub store_secrets: Secrets,
    /// The folder for a user's state; `None` if no variable says where it is.
    pub state: Option<PathBuf>,
}

/// A text that is never printed, and that is overwritten when its last clone is dropped. All clones and the headers
/// made from it share one buffer.
#[derive(Clone, derive_more::Debug, Eq, PartialEq)]
#[debug("***")]
pub struct Secret(Bytes);

/// The prefix in that buffer, so that a header needs no second buffer.
const BEARER: &str = "Bearer ";

// === impl Variables ===

impl Variables {
    /// The variables of this process. Variables whose name is not UTF-8 are left out.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub fn of_process() -> Self {
        let read = std::env::vars_os().map(|(name, value)| (name, Variable(value)));
        Self(read.filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect())
    }

    /// The user's folder, from the first variable for it that is set.
    pub fn home(&self) -> Result<Option<PathBuf>, ConfigError> {
        Ok(self.first_set(HOME)?.map(|(_, path)| PathBuf::from(path)))
    }

    /// The folder for a user's state; `None` if no variable says where it is.
    pub fn state_folder(&self) -> Option<PathBuf> {
        state_folder(|name| self.path(name))
    }

    /// The folder that a variable names, or else one below the user's folder, if that is known.
    pub fn folder(&self, name: &str, below_home: &str) -> Result<Option<PathBuf>, ConfigError> {
        match self.first_set(&[name])? {
            Some((_, path)) => Ok(Some(path.into())),
            None => Ok(self.home()?.map(|home| home.join(below_home))),
        }
    }

    /// The path that a variable has, if it is set.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.0.get(name).map(|value| PathBuf::from(&value.0))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, ConfigError> {
        self.0
            .get(name)
            .map(|value| value.0.to_str().ok_or_else(|| variable_error(name, "its value is not UTF-8")))
            .transpose()
    }

    /// The secret in a variable, if it is set.
    pub fn secret(&self, name: &str) -> Result<Option<Secret>, ConfigError> {
        let is_set = self.first_set(&[name])?.is_some();
        is_set.then(|| Secret::from_variable(self, name, "it is sent as a bearer token")).transpose()
    }

    /// The base URL in the first of the variables that is set. An error does not show it, as it may have a password.
    pub fn base_url(&self, names: &[&str]) -> Result<Option<BaseUrl>, ConfigError> {
        let Some((name, url)) = self.first_set(names)? else { return Ok(None) };
        url.parse().map(Some).map_err(|error: BaseUrlError| variable_error(name, &error.to_string()))
    }

    /// Whether `NO_COLOR` or `TERM` asks for output without colour.
    pub fn wants_plain_text(&self) -> Result<bool, ConfigError> {
        let no_colour = self.first_set(&["NO_COLOR"])?.is_some();
        Ok(no_colour || self.first_set(&["TERM"])?.is_some_and(|(_, term)| term == "dumb"))
    }

    /// The first of the variables that is set to a non-empty value.
    pub fn first_set<'a>(&'a self, names: &[&'a str]) -> Result<Option<(&'a str, &'a str)>, ConfigError> {
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

// === impl Environment ===

impl Environment {
    /// Reads the variables that these settings name, and the well-known ones.
    pub fn read(variables: &Variables, config: &Config) -> anyhow::Result<Self> {
        let key = |name: &str, named_by: &str| Secret::from_variable(variables, name, named_by);
        let mut model_keys = BTreeMap::new();
        let mut add = |name: &Option<String>, named_by: &str| -> Result<(), ConfigError> {
            if let Some(name) = name {
                model_keys.insert(name.clone(), key(name, named_by)?);
            }
            Ok(())
        };
        add(&config.upstream.api_key_env, "upstream.api_key_env names it for the upstream's key")?;
        for routes::Settings { name, api_key_env, .. } in &config.upstreams {
            add(api_key_env, &format!("api_key_env of [[upstreams]] {name:?} names it for the upstream's key"))?;
        }
        let policies = config.policies.keys().map(|name| Ok(config.under_policy(name)?.summarize));
        let policies = policies.collect::<anyhow::Result<Vec<_>>>()?;
        for settings in std::iter::once(&config.summarize).chain(&policies) {
            for endpoint in settings.model.iter().chain(&settings.failover) {
                add(&endpoint.api_key_env, "api_key_env of [summarize] names it for a model's key")?;
            }
        }
        let handler_key = |(name, handler): (&String, &Handler)| {
            let named_by = format!("handlers.{name}.key_env names it for the handler's key");
            Some(key(handler.key_env.as_deref()?, &named_by).map(|key| (name.clone(), key)))
        };
        let store_url = config.store.url_env.as_deref();
        Ok(Self {
            model_keys,
            operator_token: config.admin.token_env.as_deref().map(|name| admin_token(variables, name)).transpose()?,
            handler_keys: config.handlers.iter().filter_map(handler_key).collect::<Result<_, ConfigError>>()?,
            state: variables.state_folder(),
            proxies: proxies(variables)?,
            store_url: named(variables, store_url, "store.url_env names it for the URL of the store")?,
            store_secrets: store_secrets(variables, &config.store)?,
        })
    }

    /// Without a token of the settings, makes one, or reads the one that was made before; or says why it is in memory alone.
    /// `None` if there was one already.
    pub fn make_operator_token(&mut self) -> Option<io::Result<()>> {
        if self.operator_token.is_some() {
            return None;
        }
        let (token, kept) = operator_token::make(self.state.as_deref());
        self.operator_token = token;
        Some(kept)
    }

    /// How these settings open a store in an engine.
    pub fn store_options(&self, settings: &store::Settings) -> Options {
        Options {
            url: self.store_url.as_ref().map(|url| url.expose().to_owned()).unwrap_or_default(),
            settings: settings.clone(),
            secrets: self.store_secrets.clone(),
            clock: None,
            fresh: None,
        }
    }
}

/// The secret in the variable that a setting names, if it names one.
fn named(variables: &Variables, name: Option<&str>, named_by: &str) -> Result<Option<Secret>, ConfigError> {
    name.map(|name| Secret::from_variable(variables, name, named_by)).transpose()
}

/// Reads the secrets of the store.
fn store_secrets(variables: &Variables, settings: &store::Settings) -> Result<Secrets, ConfigError> {
    let current = named(variables, settings.secret_env.as_deref(), "store.secret_env names it")?;
    let old = named(variables, settings.old_secrets_env.as_deref(), "store.old_secrets_env names it")?;
    Secrets::parse(current.as_ref().map(Secret::expose), old.as_ref().map(Secret::expose)).map_err(|error| {
        let named = [settings.secret_env.as_deref(), settings.old_secrets_env.as_deref()];
        variable_error(&named.into_iter().flatten().collect::<Vec<_>>().join(" or "), &error.to_string())
    })
}

/// Reads the operators' token. A short one is refused because it could be guessed.
fn admin_token(variables: &Variables, name: &str) -> Result<Secret, ConfigError> {
    let token = Secret::from_variable(variables, name, "admin.token_env names it for the token of operators")?;
    if token.expose().len() < MIN_TOKEN_BYTES {
        let message = format!(
            "shorter than {MIN_TOKEN_BYTES} characters, so it could be guessed; allowed: a longer one, such as `openssl rand -hex 32` prints"
        );
        return Err(variable_error(name, &message));
    }
    Ok(token)
}

/// The proxies in the well-known variables. Lower case overrides upper case.
fn proxies(variables: &Variables) -> Result<Proxies, ConfigError> {
    Ok(Proxies {
        all: proxy(variables, &["all_proxy", "ALL_PROXY"])?,
        http: proxy(variables, &["http_proxy", "HTTP_PROXY"])?,
        https: proxy(variables, &["https_proxy", "HTTPS_PROXY"])?,
        no: variables.first_set(&["no_proxy", "NO_PROXY"])?.map(|(_, hosts)| hosts.to_owned()),
    })
}

/// The URL of a proxy. An unusable one is an error here: the client would ignore it, and requests that are meant to go
/// through a proxy would be sent directly.
fn proxy(variables: &Variables, names: &[&str]) -> Result<Option<String>, ConfigError> {
    let Some((name, url)) = variables.first_set(names)? else { return Ok(None) };
    let (scheme, host) = url.split_once("://").unwrap_or(("http", url));
    let host = host.trim_end_matches('/');
    if PROXY_SCHEMES.contains(&scheme) && host.parse::<http::uri::Authority>().is_ok() {
        return Ok(Some(url.to_owned()));
    }
    Err(variable_error(
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

    /// The value of this header field with the key, sharing the buffer. It is marked sensitive: logs do not print it, and
    /// HTTP/2 does not index it.
    pub fn header(&self, field: KeyHeader) -> Result<HeaderValue, InvalidHeaderValue> {
        let from = if field == KeyHeader::Authorization { 0 } else { BEARER.len() };
        let mut value = HeaderValue::from_maybe_shared(self.0.slice(from..))?;
        value.set_sensitive(true);
        Ok(value)
    }

    pub(super) fn new(text: &str) -> Self {
        // Allocated at full length: a growing buffer would leave copies in freed memory.
        let mut buffer = Zeroizing::new(Vec::with_capacity(BEARER.len() + text.len()));
        buffer.extend_from_slice(BEARER.as_bytes());
        buffer.extend_from_slice(text.as_bytes());
        Self(Bytes::from_owner(buffer))
    }

    fn from_variable(variables: &Variables, name: &str, named_by: &str) -> Result<Self, ConfigError> {
        let wrong = |what| variable_error(name, &format!("{what}; {named_by}"));
        let text = variables.text(name)?.ok_or_else(|| wrong("not set"))?;
        match text {
            "" => Err(wrong("empty")),
            _ if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Self::new(text)),
            _ => Err(wrong("holds a blank, a line break or another character that is in no key")),
        }
    }
}

fn variable_error(name: &str, message: &str) -> ConfigError {
    ConfigError::at(&SourceLocation::Variable(name.into()), message)
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
    fn lower_case_proxy_variables_win_and_empty_ones_count_as_unset() {
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
    fn an_unusable_proxy_url_is_an_error() {
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
    fn a_key_must_be_set_and_fit_into_a_header() {
        let tail = "; upstream.api_key_env names it for the upstream's key";
        assert_eq!(read(&[], Some("KEY")).unwrap_err(), format!("KEY: not set{tail}"));
        assert_eq!(read(&[("KEY", "")], Some("KEY")).unwrap_err(), format!("KEY: empty{tail}"));
        for bad in ["a\nb", "a b", "ключ"] {
            let error = read(&[("KEY", bad)], Some("KEY")).unwrap_err();
            assert_eq!(error, format!("KEY: holds a blank, a line break or another character that is in no key{tail}"));
        }
        assert_eq!(read(&[("KEY", "sk-1")], Some("KEY")).unwrap().model_keys["KEY"].expose(), "sk-1");
        assert!(read(&[("KEY", "sk-1")], None).unwrap().model_keys.is_empty());
    }

    #[test]
    fn each_summarizer_endpoint_reads_its_own_key() {
        let endpoint = |env: Option<&str>| crate::edit::summarize::Endpoint {
            base_url: "http://h".to_owned(),
            model: "m".to_owned(),
            api_key_env: env.map(str::to_owned),
        };
        let mut config = Config::default();
        config.summarize.model = Some(endpoint(Some("ONE")));
        config.summarize.failover = vec![endpoint(None), endpoint(Some("TWO"))];
        let read = |variables: &[(&str, &str)]| Environment::read(&variables.iter().copied().collect(), &config);
        let keys = read(&[("ONE", "sk-1"), ("TWO", "sk-2")]).unwrap().model_keys;
        let keys: Vec<_> = keys.iter().map(|(name, key)| (name.as_str(), key.expose())).collect();
        assert_eq!(keys, [("ONE", "sk-1"), ("TWO", "sk-2")]);
        let error = read(&[("ONE", "sk-1")]).unwrap_err().to_string();
        assert_eq!(error, "TWO: not set; api_key_env of [summarize] names it for a model's key");
    }

    #[test]
    fn debug_output_contains_no_secret() {
        let variables = [("KEY", "sk-1"), ("HTTPS_PROXY", "http://me:sk-1@proxy")];
        let environment = read(&variables, Some("KEY")).unwrap();
        let variables: Variables = variables.into_iter().collect();
        let printed = format!("{environment:?} {variables:?}");
        assert!(!printed.contains("sk-1"), "{printed}");
    }

    #[test]
    fn a_header_is_the_secret_itself_and_prints_nothing() {
        let environment = read(&[("KEY", "sk-1")], Some("KEY")).unwrap();
        let key = &environment.model_keys["KEY"];
        let header = key.header(KeyHeader::Authorization).unwrap();
        assert_eq!(header, "Bearer sk-1");
        assert!(header.is_sensitive());
        assert_eq!(format!("{header:?} {key:?}"), "Sensitive ***");
        let again = key.header(KeyHeader::Authorization).unwrap();
        assert_eq!(header.as_bytes().as_ptr(), again.as_bytes().as_ptr(), "no copies");
    }
}

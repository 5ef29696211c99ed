//! How a model gets back what was taken out: the retrieval method of a request, and the words that describe it.
//!
//! The words depend on the settings, the tools that the request offers and the handle alone.

use std::fmt::Write as _;
use std::time::Duration;

use memchr::memmem;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::language::Language;
use crate::payload::{HANDLE_LEN, HASH_MARK, MediaType, PayloadKey, handles_in, hashes_in};
use crate::units::{ByteSize, Period};

pub mod own_tools;

/// `[recall]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The way to read a text back that notices name.
    pub via: Via,
    /// Where the agent's tools reach abridge: scheme, host and port.
    ///
    /// Not set: the first TCP address of `server.listen`.
    ///
    /// Example: `"http://127.0.0.1:8787"`
    pub public_url: Option<String>,
    /// The folder for exported files, as the agent's tools name it. Its files are swept by `store.keep_for` and
    /// `store.max_bytes`; nothing else in the folder is touched.
    ///
    /// Not set: nothing is exported.
    ///
    /// Example: `"/var/lib/abridge/export"`
    pub export_dir: Option<String>,
    /// The tool that notices say to read an exported file with.
    #[default("read_file".to_owned())]
    pub reader_tool: String,
    /// Tools whose results are never truncated, by name or pattern, because what they read was asked for. Nor are the
    /// results of calls whose arguments name a handle, as a URL or an exported file.
    #[default(vec!["read_file".to_owned()])]
    pub reader_tools: Vec<String>,
    /// Tools that can make an HTTP request, for `via = "auto"`. Letter case does not matter.
    #[default(SHELL_TOOLS.lines().map(str::to_owned).collect())]
    pub shell_tools: Vec<String>,
    /// Whether a recall over HTTP or MCP needs the credential that the conversation was sent with. `"handle"`: the handle is
    /// enough. `"credential"`: without a credential the answer is 401; with another caller's it is 404, as for a handle that
    /// never existed. `"auto"`: the handle is enough on a loopback address or a Unix socket, as long as the requests of one
    /// caller have come, no proxy has forwarded the recall, and `[clients]` is empty. The operators' token is always enough.
    pub auth: Auth,
    /// Whether the model gets a tool by which it pins results, which are then not cleared, and has old results cleared before
    /// the trigger of `clear_tool_results` holds: `control_context` of the MCP server, or `abridge_control_context`, which
    /// abridge adds to requests whose texts `abridge_recall` would read. Pinned results together have at most a quarter of the
    /// trigger's tokens.
    pub controls: bool,
    /// The limits of the tool that abridge adds to requests.
    pub tool: ToolSettings,
}

/// The credential that a recall over HTTP needs besides the handle.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// Nothing on this machine while there is one caller, else a credential.
    #[default]
    Auto,
    /// Nothing.
    Handle,
    /// The credential of the conversation.
    Credential,
}

/// `[recall.tool]` of `proxy.toml`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct ToolSettings {
    /// How often the model is asked again within one answer, because it has called the tool. Then the tool answers that
    /// there is no more to read. Allowed: 1 to 64.
    #[default(4)]
    pub rounds: usize,
    /// The bytes of one answer, as events or JSON, that abridge reads for that. What is longer is relayed as it comes.
    /// Allowed: 64KiB to 256MiB.
    #[default(ByteSize::mib(16))]
    pub max_bytes: ByteSize,
    /// How long the model may go on reading within one answer. Then the tool answers that there is no more to read.
    /// Allowed: 1ms to 365d.
    #[default(Period(Duration::from_mins(5)))]
    pub timeout: Period,
}

/// How a payload is got back.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// The tool `recall` of abridge's MCP server if the request offers it; else a file if `export_dir` is set and the
    /// request offers `reader_tool`; else HTTP if `public_url` is known and the request offers one of `shell_tools`; else,
    /// if the request offers tools, as `"tool"`; else none. Where the instructions say `Network access is restricted`, as
    /// Codex's do in its sandbox, HTTP is the last way.
    #[default]
    Auto,
    /// As `"auto"`, with the tools that the request offers alone: none where they do not serve.
    Offered,
    /// The tool `recall` of the MCP server at `/abridge/mcp`, under the name that the request offers it by, such as
    /// `mcp__abridge__recall`; none where it does not.
    Mcp,
    /// As `"mcp"`; where the request offers other tools alone, abridge adds a tool `abridge_recall` to them and answers its
    /// calls itself.
    Tool,
    /// A URL of abridge, read with `GET`.
    Http,
    /// A path below `export_dir`.
    File,
    /// No way: notices do not say how to read the text.
    None,
    /// The tool of a gateway, which asks abridge by a hash. Only requests of gateways have it.
    #[serde(skip)]
    Retrieve,
}

const SHELL_TOOLS: &str = include_str!("recall/shell_tools.txt");

/// How a payload can be retrieved in one request.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum RetrievalMethod<'a> {
    /// A call of the tool `recall` of abridge's MCP server.
    Tool {
        /// Its name in the request.
        name: String,
        /// Whether abridge adds it to the request, and answers its calls.
        is_added: bool,
    },
    /// `GET {base}/abridge/recall/{handle}`.
    Http {
        /// Where abridge is reached.
        base: &'a str,
    },
    /// `{dir}/{handle}.txt`, or with the end of another type.
    File {
        /// The folder.
        dir: &'a str,
        /// The tool that reads it.
        tool: &'a str,
    },
    /// A call of [`RETRIEVE_TOOL`], which a gateway adds and answers.
    Retrieve,
    /// There is no way.
    Unavailable,
}

// === impl Settings ===

impl Settings {
    /// The method for a request that offers `tools`; `shell_reaches` says whether a shell among them reaches abridge.
    pub fn retrieval_method<T: AsRef<str>>(&self, tools: &[T], shell_reaches: bool) -> RetrievalMethod<'_> {
        let offered = |name: &str| tools.iter().any(|tool| tool.as_ref() == name);
        let is_shell = |tool: &T| self.shell_tools.iter().any(|name| name.eq_ignore_ascii_case(tool.as_ref()));
        let shell = || shell_reaches && tools.iter().any(is_shell);
        let tool = |name: &str, is_added| RetrievalMethod::Tool { name: name.to_owned(), is_added };
        let of_server = tools.iter().find(|tool| is_server_tool(tool.as_ref(), RECALL_TOOL));
        let recall = of_server.map(|name| tool(name.as_ref(), false));
        let file = || self.file().filter(|_| offered(&self.reader_tool));
        let found = match self.via {
            Via::None => None,
            Via::Retrieve => Some(RetrievalMethod::Retrieve),
            Via::Mcp | Via::Tool => recall,
            Via::Http => self.http(),
            Via::File => self.file(),
            Via::Auto | Via::Offered => recall.or_else(file).or_else(|| self.http().filter(|_| shell())),
        };
        let added = || (self.adds_tool() && !tools.is_empty()).then(|| tool(own_tools::RECALL.name, true));
        found.or_else(added).unwrap_or(RetrievalMethod::Unavailable)
    }

    /// The longest sentence that says how to get a text back, whatever tools a request offers.
    pub fn longest_words(&self, language: Language) -> String {
        let shell = self.shell_tools.first().map_or("", String::as_str);
        let words = ["mcp__abridge__recall", shell, &self.reader_tool].map(|tool| {
            let method = self.retrieval_method(&[tool], true);
            method.words(language, PayloadKey::from_bytes([0; 16]), MediaType::Text)
        });
        words.into_iter().max_by_key(String::len).unwrap_or_default()
    }

    fn http(&self) -> Option<RetrievalMethod<'_>> {
        self.public_url.as_deref().map(|url| RetrievalMethod::Http { base: url.trim_end_matches('/') })
    }

    fn file(&self) -> Option<RetrievalMethod<'_>> {
        let dir = self.export_dir.as_deref().map(|dir| dir.trim_end_matches('/'));
        dir.map(|dir| RetrievalMethod::File { dir, tool: &self.reader_tool })
    }

    /// Whether the method depends on the tools that a request offers.
    pub fn depends_on_tools(&self) -> bool {
        !matches!(self.via, Via::Http | Via::File | Via::None | Via::Retrieve)
    }

    /// Whether requests may get the tool that abridge answers itself.
    pub fn adds_tool(&self) -> bool {
        matches!(self.via, Via::Auto | Via::Tool)
    }

    /// Whether a call of this tool asks for a payload of ours.
    pub fn is_recall_call(&self, tool: &str, arguments: &str) -> bool {
        // In Responses, the call of a tool in a namespace has the last part of its name alone.
        let has_handle = || handles_in(arguments).next().is_some();
        let is_retrieved = || self.via == Via::Retrieve && tool.ends_with(RETRIEVE_TOOL);
        is_retrieved()
            || self.is_named_in(arguments)
            || ((tool == RECALL_TOOL || is_server_tool(tool, RECALL_TOOL)) && has_handle())
    }

    /// Whether the arguments of a call name a payload of ours so that it is got back.
    pub fn is_named_in(&self, arguments: &str) -> bool {
        // They are JSON, and in JSON a slash may be escaped.
        let unescaped = arguments.contains("\\/").then(|| arguments.replace("\\/", "/"));
        let text = unescaped.as_deref().unwrap_or(arguments);
        let is_handle =
            |at: usize| text.get(at..at + HANDLE_LEN).is_some_and(|handle| handle.parse::<PayloadKey>().is_ok());
        let follows = |prefix: &str| memmem::find_iter(text.as_bytes(), prefix).any(|at| is_handle(at + prefix.len()));
        follows(PATH)
            || self.export_dir.as_deref().is_some_and(|dir| follows(&format!("{}/", dir.trim_end_matches('/'))))
    }
}

/// The name of abridge's MCP server in the settings of clients, and of its tool that reads payloads.
const SERVER_NAME: &str = "abridge";
/// The tool of the MCP server that reads a payload.
pub const RECALL_TOOL: &str = "recall";

/// The tool that gateways add to requests, by the name that they give it.
pub const RETRIEVE_TOOL: &str = "headroom_retrieve";

/// Whether a name is that of a tool of a server called abridge, as clients write such names: `mcp__abridge__recall`,
/// `abridge_recall`, `mcp__abridge.recall`.
fn is_server_tool(name: &str, tool: &str) -> bool {
    let is_separator = |c: char| !c.is_ascii_alphanumeric();
    let server = name.strip_suffix(tool).filter(|server| server.ends_with(is_separator));
    let before = server.and_then(|server| server.trim_end_matches(is_separator).strip_suffix(SERVER_NAME));
    before.is_some_and(|before| before.is_empty() || before.ends_with(is_separator))
}

/// The path below which payloads are served.
pub const PATH: &str = "/abridge/recall/";

// === impl RetrievalMethod ===

impl RetrievalMethod<'_> {
    /// The sentence that says how to get back what `handle` names; empty if there is no way.
    pub fn words(&self, language: Language, handle: PayloadKey, media: MediaType) -> String {
        let (begin, end) = around(language);
        let (is_text, extension) = (media == MediaType::Text, media.extension());
        let mut words = String::from(begin);
        // To a string, nothing fails to be written.
        let _written = match (self, language) {
            (Self::Unavailable, _) => return String::new(),
            (Self::Retrieve, Language::En) => write!(words, "{RETRIEVE_TOOL} ({HASH_MARK}{})", handle.hash()),
            (Self::Retrieve, Language::Zh) => write!(words, "用 {RETRIEVE_TOOL} 读取（{HASH_MARK}{}）", handle.hash()),
            (Self::Tool { name, .. }, Language::En) if is_text => {
                write!(words, "{name} (handle={handle}; lines=1-200, grep=TEXT, offset=0 limit=8000)")
            }
            (Self::Tool { name, .. }, Language::Zh) if is_text => {
                write!(words, "用 {name} 读取（handle={handle}；lines=1-200、grep=文本、offset=0 limit=8000）")
            }
            (Self::Tool { name, .. }, Language::En) => write!(words, "{name} (handle={handle})"),
            (Self::Tool { name, .. }, Language::Zh) => write!(words, "用 {name} 读取（handle={handle}）"),
            (Self::Http { base }, Language::En) if is_text => {
                write!(words, "GET {base}{PATH}{handle} (?lines=1-200, ?grep=TEXT, ?offset=0&limit=8000)")
            }
            (Self::Http { base }, Language::Zh) if is_text => {
                write!(words, "GET {base}{PATH}{handle}（?lines=1-200、?grep=文本、?offset=0&limit=8000）")
            }
            (Self::Http { base }, Language::En) => {
                write!(words, "GET {base}{PATH}{handle} (binary: save it with curl -o FILE.{extension})")
            }
            (Self::Http { base }, Language::Zh) => {
                write!(words, "GET {base}{PATH}{handle}（二进制：用 curl -o FILE.{extension} 保存）")
            }
            (Self::File { dir, tool }, Language::En) => write!(words, "{tool} from {dir}/{handle}.{extension}"),
            (Self::File { dir, tool }, Language::Zh) => write!(words, "用 {tool} 读取 {dir}/{handle}.{extension}"),
        };
        words.push(end);
        words
    }
}

/// How the sentences begin and end.
fn around(language: Language) -> (&'static str, char) {
    language.choose(("Read it with ", '.'), ("读取方式：", '。'))
}

/// The sentence that says that a text cannot be read again, because a request offers no way.
pub fn lost_words(language: Language) -> &'static str {
    language.choose("It cannot be read again.", "无法再次读取。")
}

/// Whether a text may be such a sentence.
pub fn may_be_words(text: &str) -> bool {
    let is_around = |(begin, end): (&str, char)| text.starts_with(begin) && text.ends_with(end);
    let mut languages = [Language::En, Language::Zh].into_iter();
    languages.clone().any(|language| text == lost_words(language))
        || languages.any(|language| is_around(around(language)))
            && handles_in(text).count() + hashes_in(text).count() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    fn check(text: &str, tools: &[&str], expected: &str) {
        let key = PayloadKey::from_bytes([0; 16]);
        assert_eq!(
            settings(text).retrieval_method(tools, true).words(Language::En, key, MediaType::Text),
            expected,
            "{text} {tools:?}"
        );
    }

    const URL: &str = "public_url = \"http://h:1/\"";
    const DIR: &str = "export_dir = \"/x/\"";
    const HTTP: &str = "Read it with GET http://h:1/abridge/recall/00000000000000000000000000 (?lines=1-200, ?grep=TEXT, ?offset=0&limit=8000).";
    const ADDED: &str =
        "Read it with abridge_recall (handle=00000000000000000000000000; lines=1-200, grep=TEXT, offset=0 limit=8000).";
    const FILE: &str = "Read it with read_file from /x/00000000000000000000000000.txt.";

    #[test]
    fn auto_follows_the_tools() {
        let both = format!("{URL}\n{DIR}");
        check(&both, &["read_file", "bash"], FILE);
        check(&both, &["bash"], HTTP);
        check(&both, &[], "");
        check(URL, &["Bash"], HTTP);
        for (settings, tools) in [(&*both, &["search"][..]), (URL, &["read_file"]), ("", &["read_file", "bash"])] {
            check(settings, tools, ADDED);
            check(&format!("via = \"offered\"\n{settings}"), tools, "");
        }
        check(&format!("via = \"tool\"\n{both}"), &["bash", "read_file"], ADDED);
        check(&format!("via = \"tool\"\n{both}"), &[], "");
        check(&format!("{URL}\nshell_tools = [\"search\"]"), &["search"], HTTP);
        check(&format!("{DIR}\nreader_tool = \"cat\""), &["cat"], &FILE.replace("read_file", "cat"));
    }

    #[test]
    fn the_tool_of_the_mcp_server_comes_before_files_and_http() {
        let words =
            "Read it with NAME (handle=00000000000000000000000000; lines=1-200, grep=TEXT, offset=0 limit=8000).";
        let both = format!("{URL}\n{DIR}");
        for name in
            ["mcp__abridge__recall", "abridge_recall", "mcp__abridge.recall", "abridge-recall", "x/abridge:recall"]
        {
            check(&both, &["bash", "read_file", name], &words.replace("NAME", name));
            check("via = \"mcp\"", &[name], &words.replace("NAME", name));
        }
        for name in
            ["recall", "abridge", "abridgerecall", "notabridge_recall", "abridge_recall_all", "mcp__other__recall"]
        {
            check(&both, &["bash", name], HTTP);
            check(&format!("via = \"mcp\"\n{both}"), &["bash", "read_file", name], "");
        }
    }

    #[test]
    fn a_call_of_the_recall_tool_with_a_handle_is_a_recall() {
        let (settings, handle) = (Settings::default(), "0".repeat(26));
        let arguments = format!(r#"{{"handle":"{handle}","lines":"1-9"}}"#);
        for tool in ["mcp__abridge__recall", "recall"] {
            assert!(settings.is_recall_call(tool, &arguments), "{tool}");
            assert!(!settings.is_recall_call(tool, r#"{"handle":"x"}"#), "{tool}");
        }
        assert!(!settings.is_recall_call("bash", &arguments));
        assert!(settings.is_recall_call("bash", &format!("curl http://h/abridge/recall/{handle}")));
    }

    #[test]
    fn gateways_are_asked_by_the_hash_in_words_that_are_known_again() {
        let settings = Settings { via: Via::Retrieve, ..Settings::default() };
        let key = PayloadKey::from_bytes([0xAB; 16]);
        for language in [Language::En, Language::Zh] {
            let words = settings.retrieval_method::<&str>(&[], true).words(language, key, MediaType::Text);
            assert!(words.contains("headroom_retrieve") && words.contains(&format!("hash={}", "ab".repeat(12))));
            assert!(may_be_words(&words), "{words}");
        }
        assert!(settings.is_recall_call("headroom_retrieve", "{}") && !settings.is_recall_call("bash", "{}"));
        assert!(!Settings::default().is_recall_call("headroom_retrieve", "{}"));
    }

    #[test]
    fn a_fixed_way_asks_for_no_tools() {
        check(&format!("via = \"http\"\n{URL}"), &[], HTTP);
        check(&format!("via = \"file\"\n{DIR}"), &[], FILE);
        check(&format!("via = \"none\"\n{URL}\n{DIR}"), &["read_file", "bash"], "");
    }

    #[test]
    fn what_is_no_text_is_saved_to_a_file_with_the_end_of_its_type() {
        let key = PayloadKey::from_bytes([0; 16]);
        let words = |text: &str, language| {
            settings(text).retrieval_method(&["bash", "read_file"], true).words(language, key, MediaType::Png)
        };
        let url = "http://h:1/abridge/recall/00000000000000000000000000";
        assert_eq!(
            words(URL, Language::En),
            format!("Read it with GET {url} (binary: save it with curl -o FILE.png).")
        );
        assert_eq!(words(DIR, Language::En), FILE.replace(".txt", ".png"));
        for (text, language) in [(URL, Language::En), (URL, Language::Zh), (DIR, Language::En), (DIR, Language::Zh)] {
            assert!(may_be_words(&words(text, language)), "{text}");
        }
    }

    #[test]
    fn knows_a_payload_that_is_named() {
        let settings = settings(DIR);
        let handle = "0".repeat(26);
        assert!(settings.is_named_in(&format!("curl http://h/abridge/recall/{handle}?lines=1-2")));
        assert!(settings.is_named_in(&format!("/abridge/recall/ cat /x/{handle}.txt")));
        assert!(settings.is_named_in(&format!(r#"{{"url":"http:\/\/h\/abridge\/recall\/{handle}"}}"#)));
        for text in ["", "/abridge/recall/", "/abridge/recall/é0000000000000000000000000", &handle, "/x/"] {
            assert!(!settings.is_named_in(text), "{text}");
        }
        assert!(!Settings::default().is_named_in(&format!("/{handle}")));
    }
}

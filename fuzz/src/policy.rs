//! A few bytes become a policy: which edits, in which order, with which settings.

use abridge_proxy::planner::PlanSettings;

use super::PLACEHOLDER;

/// How many bytes choose.
pub const N_CHOICES: usize = 12;

/// A policy, and what may be asked of it.
#[derive(Debug)]
pub struct Chosen {
    /// Its settings.
    pub settings: PlanSettings,
    /// Whether any sequence becomes a valid one.
    pub patches: bool,
    /// Whether nothing is replaced by what is not smaller.
    pub guards_growth: bool,
    /// Whether what was done once is done again when the conversation has grown. Edits in another order do not do that.
    pub is_sticky: bool,
}

const ORDERS: [&[&str]; 8] = [
    &["patch_tool_calls", "filter_tool_calls", "truncate_tool_results", "clear_tool_results", "summarize"],
    &["patch_tool_calls", "truncate_tool_results", "clear_tool_results"],
    &["patch_tool_calls", "clear_tool_results"],
    &["patch_tool_calls", "filter_tool_calls"],
    &["patch_tool_calls", "truncate_tool_results"],
    &["clear_tool_results", "truncate_tool_results", "filter_tool_calls", "patch_tool_calls"],
    &["truncate_tool_results", "clear_tool_results", "filter_tool_calls"],
    &["clear_tool_results", "patch_tool_calls"],
];
const KEEPS: [&str; 6] = ["results = 0", "results = 1", "results = 3", "rounds = 1", "tokens = 200", "rounds = 0"];
const VIAS: [&str; 4] = [
    "via = \"none\"",
    "public_url = \"http://h/\"",
    "via = \"http\"\npublic_url = \"http://h\"",
    "via = \"file\"\nexport_dir = \"/tmp/x\"",
];
const TOOLS: [&str; 6] = [
    "",
    "[tools.bash]\nclear = false",
    "[tools.'re*']\ntruncate = { head = 50 }\nclear = false",
    "[tools.bash]\ntruncate = { head = 20, tail = 30, max_bytes = 300 }",
    "[tools.'*']\ntruncate = false",
    "[tools.read]\nclear = true\ntruncate = { tail = 0 }",
];

/// The policy that these bytes choose.
pub fn chosen(choices: [u8; N_CHOICES]) -> Chosen {
    let [order, flags, keep, via, tools, max_bytes, tokens, messages, at_least, max_calls, _, more] = choices;
    let of = |byte: u8, n: usize| usize::from(byte) % n;
    let flag = |bit: u8| flags >> bit & 1 == 1;
    let edits = ORDERS[of(order, ORDERS.len())];
    let (sliding, no_guard, keeps_orphans) = (flag(0), flag(1), flag(2));
    let optional = |key: &str, byte: u8, scale: usize| {
        if byte == 0 { String::new() } else { format!("{key} = {}\n", usize::from(byte - 1) * scale) }
    };
    let text = format!(
        "language = \"{}\"\n[policy]\nedits = {edits:?}\n[recall]\n{}\n\
         [patch_tool_calls]\ntemplate = \"{PLACEHOLDER}\"\norphans = \"{}\"\n\
         [filter_tool_calls]\n{}\
         [truncate_tool_results]\nmax_bytes = {}\n\
         [clear_tool_results]\ntrigger = {{ tokens = {}, messages = {} }}\nkeep = {{ {} }}\n{}\
         clear_tool_inputs = {}\noffload = {}\ngrowth_guard = {}\nfrontier = \"{}\"\n\
         [summarize]\ntrigger = {{ tokens = {} }}\n{}\n",
        if flag(3) { "zh" } else { "en" },
        VIAS[of(via, VIAS.len())],
        if keeps_orphans { "keep" } else { "drop" },
        optional("max_tool_calls", max_calls % 8, 1),
        usize::from(max_bytes) * 8,
        usize::from(tokens) * 10,
        of(messages, 16),
        KEEPS[of(keep, KEEPS.len())],
        optional("clear_at_least", at_least, 4),
        flag(4),
        !flag(5),
        !no_guard,
        if sliding { "sliding" } else { "sticky" },
        1 + usize::from(more) * 10,
        TOOLS[of(tools, TOOLS.len())],
    );
    let has = |edit: &str| edits.contains(&edit);
    Chosen {
        settings: toml::from_str(&text).expect("settings that can be read"),
        patches: has("patch_tool_calls") && !keeps_orphans,
        guards_growth: !no_guard,
        is_sticky: !sliding && edits[0] == "patch_tool_calls",
    }
}

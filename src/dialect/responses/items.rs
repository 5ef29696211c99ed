//! The meaning of the items of `input`, and the fields beside it. The body is read in one pass with a [`Cursor`].
//!
//! | item | unit |
//! |---|---|
//! | `message`, or anything without a type and with a role | by its role |
//! | calls | the model's, a call; of a kind, which results of that kind answer |
//! | results of the client | a tool's, a result |
//! | `reasoning`, and what a server did itself with its own results | the model's; bound: is removed with its turn or not at all |
//! | `compaction` | represents all before it |
//! | `program`, `program_output` | the model's; a summary does not end between the two |
//! | `agent_message` | the user's: another agent says it |
//! | `additional_tools` | a developer's; is sent beside a summary, as the result of a search for tools is |
//! | anything unknown with a `content` and without a `call_id` | by its role; a summary has what it says |
//! | `item_reference`, anything else that is unknown | keeps its place, and a summary ends before it |
//!
//! The item directly after reasoning belongs to it, whatever it is: the server refuses one without the other.

use std::{borrow::Cow, collections::HashSet};

use memchr::memmem;

use super::{NAME, Responses};
use crate::conversation::{Block, BlockKind, Conversation, Flags, MAX_ELEMENTS, Role, Unit};
use crate::dialect::json::{Cursor, Fault, ReadResult, beginning, field, fields};
use crate::dialect::reading::{self, RequestFields, call_id, is_direct, text};
use crate::dialect::{Dialect, ParseError, ParseErrorKind};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The fields of an item that decide what it is. None of them may be there twice.
pub(super) const ITEM: [&[u8]; 13] = [
    b"type",
    b"role",
    b"id",
    b"call_id",
    b"name",
    b"content",
    b"output",
    b"environment",
    b"execution",
    b"caller",
    b"tools",
    b"arguments",
    b"input",
];

/// The values of [`ITEM`]; none where a field is absent or null.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Item {
    pub(super) kind: Option<Span>,
    pub(super) role: Option<Span>,
    pub(super) id: Option<Span>,
    pub(super) call_id: Option<Span>,
    pub(super) name: Option<Span>,
    pub(super) content: Option<Span>,
    pub(super) output: Option<Span>,
    pub(super) environment: Option<Span>,
    pub(super) execution: Option<Span>,
    pub(super) caller: Option<Span>,
    pub(super) tools: Option<Span>,
}

impl Item {
    /// An item with these values of [`ITEM`]. The last two are not read here, but not to be there twice.
    pub(super) fn of(values: &[Option<Span>; 13]) -> Self {
        let &[kind, role, id, call_id, name, content, output, environment, execution, caller, tools, _, _] = values;
        Self { kind, role, id, call_id, name, content, output, environment, execution, caller, tools }
    }
}

/// The keys of a request that are read, in the order in which [`ViewBuilder::finish`] takes their values.
pub(super) const REQUEST_KEYS: [&[u8]; 6] =
    [b"input", b"text", b"model", b"tools", b"instructions", b"context_management"];

/// Kinds of calls. A local shell and a search for tools are answered by what answers a function, too.
pub(super) mod kind {
    pub(in crate::dialect::responses) const FUNCTION: &str = "function";
    pub(in crate::dialect::responses) const CUSTOM: &str = "custom";
    pub(in crate::dialect::responses) const SHELL: &str = "shell";
    pub(in crate::dialect::responses) const APPLY_PATCH: &str = "apply_patch";
    pub(in crate::dialect::responses) const COMPUTER: &str = "computer";
}

/// The class of an item.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Class {
    Message,
    /// A call of a kind. A text of the client answers it, if it is `answerable`.
    Call {
        kind: &'static str,
        answerable: bool,
    },
    /// A result of the client. Without its call it is refused, if it is `plain`.
    Result {
        kind: &'static str,
        plain: bool,
    },
    Reasoning,
    /// A server's action, with its result.
    Server,
    /// A question of a server, or work of it over several turns: as before, and nothing else represents it.
    ServerStays,
    /// A program that the model has written, or what has come of it.
    Program,
    Compaction,
    Reference,
    Tools,
    Trigger,
    /// What another agent says.
    Agent,
    /// Unknown, but it says something.
    Spoken,
    Unknown,
}

/// The result of a search for tools.
#[derive(Clone, Copy, Debug)]
struct FoundTools {
    unit: usize,
    tools: Span,
    by_server: bool,
}

/// The conversation in `body`, whose long strings may be known.
pub(super) fn read<'a>(body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, ParseError> {
    let (mut cursor, mut items) = (Cursor::indexed(body, strings), ViewBuilder::new(body));
    let request = reading::request(&mut cursor, REQUEST_KEYS, |cursor| input(cursor, body, &mut items));
    items.finish(cursor.finish(NAME, request)?).map_err(|fault| ParseError::new(NAME, fault))
}

fn input<'a>(cursor: &mut Cursor<'a>, body: &'a [u8], items: &mut ViewBuilder<'a>) -> ReadResult<Span> {
    if cursor.peek() == Some(b'[') {
        return cursor.elements(|cursor| {
            let start = cursor.at();
            let found = fields(cursor, ITEM)?;
            let span = Span { start, end: cursor.at() };
            let said = found.map(|value| value.filter(|value| value.of(body) != b"null"));
            cursor.accept(items.item(span, &Item::of(&said)))
        });
    }
    let value = cursor.value()?;
    if !value.of(body).starts_with(b"\"") {
        return Err(cursor.refuse((value.start, ParseErrorKind::NotAnArray)));
    }
    items.text_input(value);
    Ok(value)
}

/// Gathers the view of a request.
#[derive(Debug, Default)]
pub(super) struct ViewBuilder<'a> {
    body: &'a [u8],
    conversation: Conversation<'a>,
    /// The ids of calls that the server ran itself.
    run_by_server: HashSet<Cow<'a, str>>,
    /// The ids of calls that programs made, and of programs whose output is still to come.
    by_program: HashSet<Cow<'a, str>>,
    programs: HashSet<Cow<'a, str>>,
    /// The results of searches for tools.
    found_tools: Vec<FoundTools>,
    /// Whether an item represents one that is not there.
    has_reference: bool,
    /// Whether the last item was reasoning, and whether it was a trigger of a compaction.
    behind_reasoning: bool,
    ends_in_trigger: bool,
}

impl<'a> ViewBuilder<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { body, ..Self::default() }
    }

    /// An `input` that is a string.
    pub(super) fn text_input(&mut self, span: Span) {
        self.push(span, Role::User, Some(span), Flags { speaks: true, ..Flags::default() });
    }

    /// An item of an `input` that is an array.
    pub(super) fn item(&mut self, span: Span, item: &Item) -> Result<(), Fault> {
        if self.conversation.units.len() == MAX_ELEMENTS {
            return Err((span.start, ParseErrorKind::TooMany));
        }
        let in_program = !self.programs.is_empty();
        let class = self.class(item)?;
        self.block(span, item, class)?;
        let for_program = self.is_for_program(item, class)?;
        let (role, flags) = self.role(item, class, for_program)?;
        let content = match class {
            Class::Message | Class::Agent | Class::Spoken => item.content,
            Class::Result { .. } => item.output,
            _ => None,
        };
        let interrupts = class == Class::Message && role == Role::User;
        if interrupts {
            self.programs.clear(); // the user has interrupted them
        }
        let in_program = in_program && !interrupts;
        self.offers_tools(item, class)?;
        self.push(span, role, content, Flags { in_program, ..flags });
        if class == Class::Compaction {
            self.conversation.traits.n_compacted = self.conversation.units.len();
        }
        self.has_reference |= class == Class::Reference;
        self.behind_reasoning = class == Class::Reasoning;
        self.ends_in_trigger = class == Class::Trigger;
        Ok(())
    }

    /// The view, with the values of [`REQUEST_KEYS`].
    pub(super) fn finish(mut self, (values, history): RequestFields<6>) -> Result<Conversation<'a>, Fault> {
        let [_, config, model, tools, instructions, edits] = values;
        let format = beginning(self.body, config, b'{').and_then(|config| field(self.body, config, b"format"));
        self.conversation.model = text(self.body, model)?;
        self.conversation.tools = tools;
        self.conversation.format = format.filter(|format| format.of(self.body) != b"null");
        self.conversation.instructions = instructions;
        let edits = edits.map(|edits| edits.of(self.body));
        self.conversation.traits.repeats_results = true;
        self.mark_loading();
        history.apply(&mut self.conversation);
        let traits = &mut self.conversation.traits;
        traits.compacts_itself = self.ends_in_trigger || edits.is_some_and(|edits| !is_empty(edits));
        if self.has_reference || traits.n_compacted > 0 {
            self.conversation.keep_results();
        }
        if self.has_reference {
            for unit in self.conversation.units.iter_mut().filter(|unit| !unit.blocks.is_empty()) {
                unit.flags.stays |= unit.role == Role::Assistant; // what is referred to may be its reasoning
            }
        }
        Ok(self.conversation)
    }

    // === helpers ===

    /// Marks the searches for tools without which the model would not know tools that the request still has.
    fn mark_loading(&mut self) {
        if self.found_tools.is_empty() {
            return;
        }
        let (body, conversation) = (self.body, &mut self.conversation);
        let found: HashSet<usize> = self.found_tools.iter().map(|found| found.tools.start).collect();
        let offered = conversation.tools.iter().chain(&conversation.more_tools);
        let offered: Vec<_> = offered.filter(|tools| !found.contains(&tools.start)).collect();
        let searches = offered.iter().any(|tools| memmem::find(tools.of(body), br#""tool_search""#).is_some());
        let names = |tools: Span| Responses.tool_names(body, tools);
        let known: HashSet<_> = offered.into_iter().flat_map(|tools| names(*tools)).collect();
        for found in &self.found_tools {
            let loads = (searches && !found.by_server) || names(found.tools).iter().any(|name| known.contains(name));
            if let Some(unit) = conversation.units.get_mut(found.unit) {
                unit.flags.loads |= loads;
            }
        }
    }

    fn class(&mut self, item: &Item) -> Result<Class, Fault> {
        let Some(name) = item.kind else {
            return Ok(match (item.role, item.id) {
                (Some(_), _) => Class::Message,
                (None, Some(_)) => Class::Reference,
                (None, None) => Class::Unknown,
            });
        };
        let name = text(self.body, Some(name))?.unwrap_or_default();
        let id = || text(self.body, item.call_id);
        let call = |kind, answerable| Class::Call { kind, answerable };
        let result = |kind| Class::Result { kind, plain: true };
        Ok(match &*name {
            "message" => Class::Message,
            "function_call" | "local_shell_call" => call(kind::FUNCTION, true),
            "function_call_output" | "local_shell_call_output" => result(kind::FUNCTION),
            "custom_tool_call" => call(kind::CUSTOM, true),
            "custom_tool_call_output" => result(kind::CUSTOM),
            "apply_patch_call" => call(kind::APPLY_PATCH, true),
            "apply_patch_call_output" => result(kind::APPLY_PATCH),
            "computer_call" => call(kind::COMPUTER, false),
            "computer_call_output" => Class::Result { kind: kind::COMPUTER, plain: false },
            "shell_call" if self.is_local(item) => call(kind::SHELL, true),
            "shell_call" => {
                self.run_by_server.extend(id()?);
                Class::Server
            }
            "shell_call_output" if id()?.is_some_and(|id| self.run_by_server.contains(&id)) => Class::Server,
            "shell_call_output" => result(kind::SHELL),
            "tool_search_call" | "tool_search_output"
                if item.call_id.is_none() || text(self.body, item.execution)?.is_some_and(|by| by == "server") =>
            {
                Class::Server // which has searched itself
            }
            "tool_search_call" => call(kind::FUNCTION, false),
            "tool_search_output" => Class::Result { kind: kind::FUNCTION, plain: false },
            "reasoning" => Class::Reasoning,
            "web_search_call"
            | "file_search_call"
            | "code_interpreter_call"
            | "image_generation_call"
            | "mcp_call"
            | "mcp_list_tools" => Class::Server,
            "mcp_approval_request" => Class::ServerStays,
            "program" => {
                self.programs.extend(id()?);
                Class::Program
            }
            "program_output" => {
                id()?.map(|id| self.programs.remove(&id));
                Class::Program
            }
            "agent_message" => Class::Agent,
            "compaction" | "compaction_summary" | "context_compaction" => Class::Compaction,
            "compaction_trigger" => Class::Trigger,
            "item_reference" => Class::Reference,
            "additional_tools" => Class::Tools,
            _ if item.content.is_some() && item.call_id.is_none() && !self.behind_reasoning => Class::Spoken,
            _ => Class::Unknown,
        })
    }

    /// Who speaks in an item, and what else is known of it.
    fn role(&self, item: &Item, class: Class, for_program: bool) -> Result<(Role, Flags), Fault> {
        let none = Flags::default();
        let speaks = Flags { speaks: true, ..none };
        let stays = Flags { barrier: true, stays: true, ..none };
        let speaker = || {
            let role = text(self.body, item.role)?.map(|role| Role::named(&role));
            Ok(role.filter(|role| *role != Role::Tool).unwrap_or_default()) // results are not messages here
        };
        Ok(match class {
            Class::Message => (speaker()?, speaks),
            Class::Spoken => (speaker()?, Flags { barrier: true, ..speaks }),
            Class::Agent => (Role::User, speaks),
            Class::Result { .. } => (Role::Tool, Flags { for_program, ..none }),
            Class::Call { .. } => (Role::Assistant, Flags { for_program, runs_program: for_program, ..none }),
            Class::Reasoning => (Role::Assistant, Flags { bound: true, thinks: true, ..none }),
            Class::Program => (Role::Assistant, Flags { bound: true, barrier: true, runs_program: true, ..none }),
            Class::Server => (Role::Assistant, Flags { bound: true, barrier: true, ..none }),
            Class::ServerStays => (Role::Assistant, Flags { bound: true, ..stays }),
            // The client's additions are in no one's turn; the model may have gone on with the rest.
            Class::Tools => (Role::Developer, Flags { barrier: true, loads: true, ..none }),
            Class::Reference | Class::Unknown if self.behind_reasoning => (Role::Assistant, stays),
            Class::Reference | Class::Unknown | Class::Compaction | Class::Trigger => (Role::Other, stays),
        })
    }

    /// Adds the call or the result that an item is.
    fn block(&mut self, span: Span, item: &Item, class: Class) -> Result<(), Fault> {
        let kind = match class {
            Class::Call { kind, answerable } => {
                let id = call_id(self.body, kind, item.call_id)?;
                let answerable = answerable && !id.text.is_empty();
                BlockKind::ToolCall { id, name: text(self.body, item.name)?, answerable }
            }
            Class::Result { kind, plain } => {
                // That of a local shell has the id of the call as its own.
                let own = item.id.filter(|_| {
                    text(self.body, item.kind).is_ok_and(|name| name.as_deref() == Some("local_shell_call_output"))
                });
                let call_id = call_id(self.body, kind, item.call_id.or(own))?;
                let may_leave = plain && !call_id.text.is_empty();
                BlockKind::ToolResult { call_id, may_leave }
            }
            _ => return Ok(()),
        };
        self.conversation.blocks.push(Block { unit: self.conversation.next_unit(), span, kind });
        Ok(())
    }

    fn push(&mut self, span: Span, role: Role, content: Option<Span>, flags: Flags) {
        let continues = role == Role::Assistant
            && self.conversation.units.last().is_some_and(|before| before.role == Role::Assistant);
        let unit = self.conversation.following(continues);
        self.conversation.push_element(Unit { span, role, content, flags, ..unit });
    }

    /// Whether the commands of a shell run where the client is.
    fn is_local(&self, item: &Item) -> bool {
        item.environment.is_none_or(|environment| memmem::find(environment.of(self.body), br#""local""#).is_some())
    }

    /// Whether a program that the model wrote has made a call, or gets a result.
    fn is_for_program(&mut self, item: &Item, class: Class) -> Result<bool, Fault> {
        let by_program = item.caller.map(|caller| !is_direct(self.body, caller));
        if by_program != Some(true) && self.by_program.is_empty() {
            return Ok(false);
        }
        let id = text(self.body, item.call_id)?.unwrap_or_default();
        Ok(match class {
            Class::Call { .. } if by_program == Some(true) => {
                self.by_program.insert(id);
                true
            }
            Class::Call { .. } => {
                self.by_program.remove(&id);
                false
            }
            Class::Result { .. } => by_program.unwrap_or_else(|| self.by_program.contains(&id)),
            _ => false,
        })
    }

    /// Notes the tools that an item makes known.
    fn offers_tools(&mut self, item: &Item, class: Class) -> Result<(), Fault> {
        let Some(tools) = item.tools.filter(|tools| tools.of(self.body).starts_with(b"[")) else { return Ok(()) };
        let found = text(self.body, item.kind)?.is_some_and(|kind| kind == "tool_search_output");
        if found {
            let (unit, by_server) = (self.conversation.units.len(), class == Class::Server);
            self.found_tools.push(FoundTools { unit, tools, by_server });
        }
        if found || class == Class::Tools {
            self.conversation.more_tools.push(tools);
        }
        Ok(())
    }
}

fn is_empty(array: &[u8]) -> bool {
    array.iter().filter(|byte| !byte.is_ascii_whitespace()).eq(b"[]")
}

//! Settings as somebody wrote them: a tree of values, each of which knows where it was written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, forward_to_deserialize_any};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Place, Problem, Wrong};

/// The keys of tables that say one thing with all their keys together.
const WHOLE: [&str; 3] = ["keep", "trigger", "truncate"];

/// A value and the place where it was written.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

/// The values that TOML has; dates are kept as text.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    List(Vec<Node>),
    Table(BTreeMap<String, Entry>),
}

/// A value of a table, and where its key was written.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: Place,
    pub(super) node: Node,
}

/// The text of a file with the starts of its lines.
struct Source<'a> {
    name: Arc<str>,
    text: &'a str,
    line_starts: Vec<usize>,
}

// === impl Node ===

impl Node {
    /// A table with nothing in it: the settings of somebody who wrote none.
    pub(super) fn empty() -> Self {
        Self { place: Place::Flag(""), value: Value::Table(BTreeMap::new()) }
    }

    /// The settings that a file holds.
    pub(super) fn from_file(path: &Path, text: &str) -> Result<Self, Problem> {
        let source = Source::new(path, text);
        let table = DeTable::parse(text)
            .map_err(|error| Problem::new(source.place(error.span().unwrap_or_default()), Wrong::syntax(&error)))?;
        let at = table.span();
        table_node(table.into_inner(), &|span| source.place(span), source.place(at))
    }

    /// One value, written in TOML, that is not part of a file.
    pub(super) fn from_text(place: &Place, text: &str) -> Result<Self, Problem> {
        let value = DeValue::parse(text).map_err(|error| Problem::new(place.clone(), Wrong::syntax(&error)))?;
        node(value, &|_| place.clone())
    }

    /// The value as the only one in tables within tables: `path` names them from the outermost.
    pub(super) fn nested_in(self, path: &[String]) -> Self {
        path.iter().rev().fold(self, |node, key| {
            let place = node.place.clone();
            let entry = Entry { key: place.clone(), node };
            Self { place, value: Value::Table(BTreeMap::from([(key.clone(), entry)])) }
        })
    }

    /// Lays another tree on this one: tables are joined, everything else is replaced. So are tables of which a part would
    /// mean something else with a part of another: see [`WHOLE`].
    pub(super) fn lay(&mut self, over: Self) {
        self.lay_joining(over, &|key| !WHOLE.contains(&key));
    }

    /// Lays another tree of the same source on this one: all tables are joined.
    pub(super) fn join(&mut self, over: Self) {
        self.lay_joining(over, &|_| true);
    }

    /// `joined` says whether the table of a key is joined with the one that lies there.
    fn lay_joining(&mut self, over: Self, joined: &dyn Fn(&str) -> bool) {
        match (&mut self.value, over) {
            (Value::Table(under), Self { value: Value::Table(over), .. }) => {
                for (key, entry) in over {
                    match under.get_mut(&key) {
                        Some(below) if joined(&key) => below.node.lay_joining(entry.node, joined),
                        _ => drop(under.insert(key, entry)),
                    }
                }
            }
            (_, over) => *self = over,
        }
    }

    /// The value under a path of keys.
    pub(super) fn find(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |node, key| match &node.value {
            Value::Table(table) => table.get(*key).map(|entry| &entry.node),
            Value::List(list) => list.get(key.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// A problem with the value under a path, placed where somebody wrote it.
    pub(super) fn problem(&self, path: &[&str], message: String) -> Problem {
        let Some(node) = self.find(path) else { return Problem::elsewhere(message) };
        let problem = Problem::new(node.place.clone(), Wrong::Other(message));
        path.iter().rev().fold(problem, |problem, key| problem.within(key))
    }

    /// The table under a path of keys, changeable.
    pub(super) fn table_mut(&mut self, path: &[&str]) -> Option<&mut BTreeMap<String, Entry>> {
        let Value::Table(table) = &mut self.value else { return None };
        match path {
            [] => Some(table),
            [key, rest @ ..] => table.get_mut(*key)?.node.table_mut(rest),
        }
    }
}

fn node(spanned: Spanned<DeValue<'_>>, place: &dyn Fn(Range<usize>) -> Place) -> Result<Node, Problem> {
    let at = place(spanned.span());
    let value = match spanned.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix())
            .map(Value::Integer)
            .map_err(|_| Problem::new(at.clone(), Wrong::Other("the number is too large".to_owned())))?,
        DeValue::Float(digits) => Value::Float(digits.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(truth) => Value::Boolean(truth),
        DeValue::Datetime(date) => Value::Text(date.to_string()),
        DeValue::Array(list) => {
            Value::List(list.into_iter().map(|element| node(element, place)).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => return table_node(table, place, at),
    };
    Ok(Node { place: at, value })
}

fn table_node(table: DeTable<'_>, place: &dyn Fn(Range<usize>) -> Place, at: Place) -> Result<Node, Problem> {
    let entries = table.into_iter().map(|(key, value)| {
        let entry = Entry { key: place(key.span()), node: node(value, place)? };
        Ok((key.into_inner().into_owned(), entry))
    });
    Ok(Node { place: at, value: Value::Table(entries.collect::<Result<_, Problem>>()?) })
}

impl<'a> Source<'a> {
    fn new(path: &Path, text: &'a str) -> Self {
        let line_starts = std::iter::once(0).chain(memchr::memchr_iter(b'\n', text.as_bytes()).map(|end| end + 1));
        Self { name: path.display().to_string().into(), text, line_starts: line_starts.collect() }
    }

    fn place(&self, span: Range<usize>) -> Place {
        let line = self.line_starts.partition_point(|start| *start <= span.start).max(1);
        let start = self.line_starts.get(line - 1).copied().unwrap_or_default();
        let column = self.text.get(start..span.start).map_or(0, |before| before.chars().count()) + 1;
        Place::File { name: Arc::clone(&self.name), line, column }
    }
}

// === Deserializer ===
// A problem takes the place of the innermost value that it is about, and gathers the keys on its way out.

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Problem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match &self.value {
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::Integer(number) => visitor.visit_i64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Boolean(truth) => visitor.visit_bool(*truth),
            Value::List(list) => visitor.visit_seq(Elements(list.iter())),
            Value::Table(table) => visitor.visit_map(Entries { rest: table.iter(), value: None }),
        }
        .map_err(|problem: Problem| problem.at(&self.place))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_newtype_struct(self)
    }

    /// Derived code would also take a list, value by value in the order of the fields; nobody means that.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        match &self.value {
            Value::List(_) => {
                let wrong = Wrong::Type { found: "a list", expected: "a table".to_owned() };
                Err(Problem::new(self.place.clone(), wrong))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        allowed: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        match &self.value {
            Value::Text(text) => {
                let name: StrDeserializer<'_, Problem> = text.as_str().into_deserializer();
                visitor.visit_enum(name).map_err(|problem| problem.at(&self.place))
            }
            _ => Err(Problem::new(self.place.clone(), Wrong::NotAChoice { given: None, allowed })),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

struct Elements<'de>(std::slice::Iter<'de, Node>);

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = Problem;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Problem> {
        self.0.next().map(|node| seed.deserialize(node).map_err(|problem| problem.at(&node.place))).transpose()
    }
}

struct Entries<'de> {
    rest: std::collections::btree_map::Iter<'de, String, Entry>,
    value: Option<(&'de str, &'de Node)>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Problem;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Problem> {
        let Some((key, entry)) = self.rest.next() else { return Ok(None) };
        self.value = Some((key, &entry.node));
        let name: StrDeserializer<'_, Problem> = key.as_str().into_deserializer();
        seed.deserialize(name).map(Some).map_err(|problem| problem.at(&entry.key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Problem> {
        let Some((key, node)) = self.value.take() else {
            return Err(serde::de::Error::custom("a value was asked for before its key"));
        };
        seed.deserialize(node).map_err(|problem| problem.at(&node.place).within(key))
    }
}

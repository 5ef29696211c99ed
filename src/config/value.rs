//! Settings before deserialisation: a tree of values, each with the location where it was written.

use std::collections::BTreeMap;
use std::iter;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, forward_to_deserialize_any};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, ConfigErrorKind, SourceLocation, wrong_type};

/// The keys of tables that are replaced as a whole, because their keys depend on each other.
const ATOMIC_TABLES: [&str; 3] = ["keep", "trigger", "truncate"];

/// A value and the location where it was written.
#[derive(Clone, Debug)]
pub(super) struct LocatedValue {
    pub(super) location: SourceLocation,
    /// The location of its key in a table, or else its own.
    pub(super) key_location: SourceLocation,
    pub(super) value: Value,
}

/// A TOML value; dates are kept as text.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    List(Vec<LocatedValue>),
    Table(BTreeMap<String, LocatedValue>),
}

// === impl LocatedValue ===

impl LocatedValue {
    /// An empty table: no settings.
    pub(super) fn empty() -> Self {
        Self::of_flag("", Value::Table(BTreeMap::new()))
    }

    pub(super) fn of_flag(flag: &'static str, value: Value) -> Self {
        Self::at(SourceLocation::Flag(flag), value)
    }

    pub(super) fn at(location: SourceLocation, value: Value) -> Self {
        Self { key_location: location.clone(), location, value }
    }

    /// Parses a settings file.
    pub(super) fn from_file(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let name: Arc<str> = path.display().to_string().into();
        let starts = iter::once(0).chain(memchr::memchr_iter(b'\n', text.as_bytes()).map(|end| end + 1));
        let line_starts: Vec<_> = starts.collect();
        let locate = |span: Range<usize>| {
            let line = line_starts.partition_point(|start| *start <= span.start).max(1);
            let start = line_starts.get(line - 1).copied().unwrap_or_default();
            let column = text.get(start..span.start).map_or(0, |before| before.chars().count()) + 1;
            SourceLocation::File { name: Arc::clone(&name), line, column }
        };
        let table = DeTable::parse(text)
            .map_err(|error| ConfigError::syntax(&locate(error.span().unwrap_or_default()), &error))?;
        convert(Spanned::new(table.span(), DeValue::Table(table.into_inner())), &locate)
    }

    /// Lays this tree over the settings in a text.
    pub(super) fn over(self, name: &str, defaults: &str) -> Result<Self, ConfigError> {
        let mut settings = Self::from_file(Path::new(name), defaults)?;
        settings.overlay(self);
        Ok(settings)
    }

    /// Parses one TOML value that is not part of a file.
    pub(super) fn from_text(location: &SourceLocation, text: &str) -> Result<Self, ConfigError> {
        let value = DeValue::parse(text).map_err(|error| ConfigError::syntax(location, &error))?;
        convert(value, &|_| location.clone())
    }

    /// Wraps the value in nested tables; `path` has their keys from the outermost.
    pub(super) fn nested_in(self, path: &[impl ToString]) -> Self {
        path.iter().rev().fold(self, |value, key| {
            Self::at(value.location.clone(), Value::Table(BTreeMap::from([(key.to_string(), value)])))
        })
    }

    /// Lays another tree over this one: tables are merged, other values are replaced. The tables of [`ATOMIC_TABLES`]
    /// are replaced, too: parts of two of them together would have another meaning.
    pub(super) fn overlay(&mut self, over: Self) {
        self.overlay_with(over, &|key| !ATOMIC_TABLES.contains(&key));
    }

    /// Lays another tree of the same source over this one: all tables are merged.
    pub(super) fn merge(&mut self, over: Self) {
        self.overlay_with(over, &|_| true);
    }

    /// `merges` says whether the table under a key is merged or replaced.
    fn overlay_with(&mut self, over: Self, merges: &dyn Fn(&str) -> bool) {
        match (&mut self.value, over) {
            (Value::Table(under), Self { value: Value::Table(over), .. }) => {
                for (key, value) in over {
                    match under.get_mut(&key) {
                        Some(below) if merges(&key) => below.overlay_with(value, merges),
                        _ => drop(under.insert(key, value)),
                    }
                }
            }
            (_, over) => *self = over,
        }
    }

    /// The value at a path of keys.
    pub(super) fn get(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |value, key| match &value.value {
            Value::Table(table) => table.get(*key),
            Value::List(list) => list.get(key.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// An error in the value at a path, with its location.
    pub(super) fn error_at(&self, path: &[&str], message: String) -> ConfigError {
        let Some(value) = self.get(path) else { return ConfigError::unlocated(message) };
        path.iter().rev().fold(ConfigError::at(&value.location, message), |error, key| error.under_key(key))
    }

    /// The list under a key of this table, which is made if there is none. None if something else is there.
    pub(super) fn list_mut(&mut self, key: &str) -> Option<&mut Vec<Self>> {
        let Value::Table(table) = &mut self.value else { return None };
        let list = table.entry(key.to_owned()).or_insert_with(|| Self::of_flag("", Value::List(Vec::new())));
        if let Value::List(list) = &mut list.value { Some(list) } else { None }
    }
}

fn convert(
    spanned: Spanned<DeValue<'_>>,
    locate: &dyn Fn(Range<usize>) -> SourceLocation,
) -> Result<LocatedValue, ConfigError> {
    let at = locate(spanned.span());
    let value = match spanned.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix())
            .map(Value::Integer)
            .map_err(|_| ConfigError::at(&at, "the number is too large"))?,
        DeValue::Float(digits) => Value::Float(digits.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(truth) => Value::Boolean(truth),
        DeValue::Datetime(date) => Value::Text(date.to_string()),
        DeValue::Array(list) => {
            Value::List(list.into_iter().map(|element| convert(element, locate)).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => {
            let entries = table.into_iter().map(|(key, value)| {
                let value = LocatedValue { key_location: locate(key.span()), ..convert(value, locate)? };
                Ok((key.into_inner().into_owned(), value))
            });
            Value::Table(entries.collect::<Result<_, ConfigError>>()?)
        }
    };
    Ok(LocatedValue::at(at, value))
}

// === Deserializer ===
// An error takes the location of the innermost value that it is about, and collects the keys on the way out.

impl<'de> Deserializer<'de> for &'de LocatedValue {
    type Error = ConfigError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match &self.value {
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::Integer(number) => visitor.visit_i64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Boolean(truth) => visitor.visit_bool(*truth),
            Value::List(list) => visitor.visit_seq(Elements(list.iter())),
            Value::Table(table) => visitor.visit_map(Entries { rest: table.iter(), value: None }),
        }
        .map_err(|error: ConfigError| error.or_at(&self.location))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, ConfigError> {
        visitor.visit_newtype_struct(self)
    }

    /// Derived code would also accept a list with the values in the order of the fields; that is refused.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        match &self.value {
            Value::List(_) => Err(wrong_type("a list", &"a table").or_at(&self.location)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        allowed: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        match &self.value {
            Value::Text(text) => {
                let name: StrDeserializer<'_, ConfigError> = text.as_str().into_deserializer();
                visitor.visit_enum(name).map_err(|error| error.or_at(&self.location))
            }
            Value::Table(table) if table.len() == 1 => {
                visitor.visit_enum(MapAccessDeserializer::new(Entries { rest: table.iter(), value: None }))
            }
            Value::Table(_) => {
                let message = format!("exactly one key is needed; allowed: {}", allowed.join(", "));
                Err(ConfigError::unlocated(message).or_at(&self.location))
            }
            _ => Err(ConfigError::from(ConfigErrorKind::NotAChoice { given: None, allowed }).or_at(&self.location)),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

struct Elements<'de>(std::slice::Iter<'de, LocatedValue>);

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = ConfigError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, ConfigError> {
        self.0.next().map(|value| seed.deserialize(value).map_err(|error| error.or_at(&value.location))).transpose()
    }
}

struct Entries<'de> {
    rest: std::collections::btree_map::Iter<'de, String, LocatedValue>,
    value: Option<(&'de str, &'de LocatedValue)>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = ConfigError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ConfigError> {
        let Some((key, value)) = self.rest.next() else { return Ok(None) };
        self.value = Some((key, value));
        let name: StrDeserializer<'_, ConfigError> = key.as_str().into_deserializer();
        seed.deserialize(name).map(Some).map_err(|error| error.or_at(&value.key_location))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ConfigError> {
        let before_key = || ConfigError::unlocated("a value was asked for before its key");
        let (key, value) = self.value.take().ok_or_else(before_key)?;
        seed.deserialize(value).map_err(|error| error.or_at(&value.location).under_key(key))
    }
}

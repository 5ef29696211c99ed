//! The settings as tables of keys, read from the source: names, types, choices, doc comments and defaults.

use std::path::Path;
use std::{fs, slice};

use abridge_proxy::config::Config;
use syn::{Attribute, Expr, Field, Fields, GenericArgument, Item, Lit, Meta, PathArguments, Token};

use super::super::{absolute, files_below, is_test_file};

/// One table of `proxy.toml`.
pub(crate) struct Table {
    /// From the top level on.
    pub(crate) path: Vec<String>,
    pub(crate) kind: Kind,
    pub(crate) doc: String,
    /// Lines that may be in it, where its keys are the user's own.
    pub(crate) examples: Vec<String>,
    pub(crate) keys: Vec<Key>,
}

/// How often a table is there.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Kind {
    /// Always, with defaults.
    Always,
    /// Once or not at all.
    Optional,
    /// `[[…]]`, any number.
    List,
    /// `[….NAME]`, any number.
    Map,
}

/// One setting.
pub(crate) struct Key {
    pub(crate) name: String,
    /// The type of its value, as a reader calls it.
    pub(crate) words: String,
    pub(crate) doc: String,
    /// What holds without a value.
    pub(crate) not_set: Option<String>,
    /// The value that the example shows instead of the default.
    pub(crate) example: Option<String>,
    /// As TOML.
    pub(crate) default: Option<String>,
    pub(crate) is_optional: bool,
    /// The values that there are, as TOML, and what each does.
    pub(crate) choices: Vec<(String, String)>,
}

/// A type whose values are described once.
pub(crate) struct Type {
    pub(crate) words: &'static str,
    pub(crate) doc: String,
    /// Of its tables.
    pub(crate) keys: Vec<Key>,
}

/// Types that have their own section: the type, what a reader calls it, and the type that its keys are from.
const TYPES: [(&str, &str, Option<&str>); 13] = [
    ("ByteSize", "size", None),
    ("Period", "duration", None),
    ("Fraction", "fraction", None),
    ("Price", "price", None),
    ("Dollars", "dollars", None),
    ("Addresses", "address", None),
    ("BaseUrl", "URL", None),
    ("WebhookUrl", "webhook URL", None),
    ("Pattern", "pattern", None),
    ("RequestMatch", "request match", Some("RequestCondition")),
    ("Trigger", "trigger", Some("Condition")),
    ("Keep", "keep", Some("Keep")),
    ("Truncate", "truncate", Some("Limits")),
];

/// Types that need no explanation.
const PLAIN: [(&str, &str); 12] = [
    ("bool", "boolean"),
    ("On", "boolean"),
    ("Form", "string"),
    ("usize", "integer"),
    ("String", "string"),
    ("PathBuf", "path"),
    ("Inputs", "boolean or list of strings"),
    ("AtLeast", "integer or string"),
    ("HeaderMatch", "string"),
    ("ErrorPattern", "integer or string"),
    ("HeaderFields", "table of strings"),
    ("Policies", "table of tables"),
];

/// All tables, in the order of the source.
pub(crate) fn tables() -> Vec<Table> {
    let code = Code::read();
    let defaults = toml::Value::try_from(Config::default()).expect("settings are TOML");
    let mut tables = Vec::new();
    code.walk(
        code.find(None, "Config"),
        Table::new(Vec::new(), Kind::Always, Doc::default()),
        Some(&defaults),
        &mut tables,
    );
    tables
}

/// All types with their own section.
pub(crate) fn types() -> Vec<Type> {
    let code = Code::read();
    let section = |(name, words, keys): (&str, &'static str, Option<&str>)| {
        let at = code.find(None, name);
        let keys = keys.map_or_else(Vec::new, |keys| code.keys(code.find(Some(at.source), keys)));
        Type { words, doc: Doc::of(at.attributes()).text, keys }
    };
    TYPES.into_iter().map(section).collect()
}

impl Table {
    fn new(path: Vec<String>, kind: Kind, doc: Doc) -> Self {
        Self { path, kind, doc: doc.text, examples: doc.examples, keys: Vec::new() }
    }

    /// Its line in the file; empty for the top level.
    pub(crate) fn header(&self) -> String {
        let path = self.path.join(".");
        match self.kind {
            _ if self.path.is_empty() => String::new(),
            Kind::List => format!("[[{path}]]"),
            _ => format!("[{path}]"),
        }
    }

    pub(crate) fn path_of(&self, key: &Key) -> String {
        [self.path.as_slice(), slice::from_ref(&key.name)].concat().join(".")
    }

    /// Whether settings say something for a key of it.
    pub(crate) fn is_set_in(&self, settings: &toml::Value, key: &Key) -> bool {
        let own = if self.kind == Kind::Map { self.path.len() - 1 } else { self.path.len() };
        let table = self.path.iter().take(own).try_fold(settings, |value, name| value.get(name));
        let has = |table: &toml::Value| table.get(&key.name).is_some();
        table.is_some_and(|table| match self.kind {
            Kind::List => table.as_array().is_some_and(|tables| tables.iter().all(has)),
            Kind::Map => table.as_table().is_some_and(|tables| tables.values().any(has)),
            Kind::Always | Kind::Optional => has(table),
        })
    }
}

impl Key {
    /// Returns what it does, each of its choices, and what holds without it.
    pub(crate) fn parts(&self) -> Vec<String> {
        let choices = self.choices.iter().map(|(value, doc)| format!("`{value}`: {doc}"));
        let not_set = self.not_set.iter().map(|text| format!("Not set: {text}"));
        [self.doc.clone()].into_iter().chain(choices).chain(not_set).collect()
    }

    /// Its type, linked to where that is explained.
    pub(crate) fn linked_words(&self) -> String {
        let has_section = TYPES.iter().any(|(_, words, _)| *words == self.words);
        let anchor = self.words.to_lowercase().replace(' ', "-");
        if has_section { format!("[{}](#{anchor})", self.words) } else { self.words.clone() }
    }
}

// === reading ===

/// The files that define settings.
struct Code(Vec<Source>);

struct Source {
    /// The name of the module.
    module: String,
    items: Vec<Item>,
}

/// A type, and the file that it is in.
#[derive(Clone, Copy)]
struct At<'a> {
    source: &'a Source,
    item: &'a Item,
}

/// A field's type without its wrappers.
struct Shape<'a> {
    is_optional: bool,
    /// `List` or `Map`, if it is one of such.
    many: Option<Kind>,
    name: String,
    /// Unless it is of the standard library.
    at: Option<At<'a>>,
}

/// A doc comment, taken apart.
#[derive(Default)]
struct Doc {
    text: String,
    not_set: Option<String>,
    examples: Vec<String>,
}

impl Code {
    fn read() -> Self {
        let is_source =
            |path: &String| Path::new(path).extension().is_some_and(|end| end == "rs") && !is_test_file(path);
        let sources = files_below("src").into_iter().filter(is_source).filter_map(|path| {
            let text = fs::read_to_string(absolute(&path)).expect("a file of the source can be read");
            let path = Path::new(&path);
            // `x/settings.rs` has the settings of the module `x`.
            let name = match path.file_stem()?.to_str()? {
                "settings" => path.parent()?.file_name()?,
                _ => path.file_stem()?,
            };
            let module = name.to_string_lossy().into_owned();
            let file = text.contains("Deserialize").then(|| syn::parse_file(&text).expect("the source is Rust"))?;
            Some(Source { module, items: file.items })
        });
        Self(sources.collect())
    }

    /// The type of this name, or `module::name`; one of the same file comes first.
    fn find<'a>(&'a self, near: Option<&'a Source>, path: &str) -> At<'a> {
        self.look(near, path).unwrap_or_else(|| panic!("{path} is no type of src/, or more than one"))
    }

    fn look<'a>(&'a self, near: Option<&'a Source>, path: &str) -> Option<At<'a>> {
        let (module, name) = path.rsplit_once("::").map_or((None, path), |(module, name)| (Some(module), name));
        let of = |source: &'a Source| {
            let item = source.items.iter().find(|item| name_of(item).is_some_and(|own| own == name))?;
            Some(At { source, item })
        };
        if let (None, Some(at)) = (module, near.and_then(of)) {
            return Some(at);
        }
        let mut found =
            self.0.iter().filter(|source| module.is_none_or(|module| module == source.module)).filter_map(of);
        found.next().filter(|_| found.next().is_none())
    }

    /// Adds a table, and after it those that are in it.
    fn walk(&self, at: At<'_>, mut table: Table, defaults: Option<&toml::Value>, tables: &mut Vec<Table>) {
        let mut inner = Vec::new();
        for field in at.fields() {
            let (name, doc, shape) = (key_of(field), Doc::of(&field.attrs), self.shape(at.source, &field.ty));
            let default = defaults.and_then(|defaults| defaults.get(&name)).cloned();
            let path = [table.path.clone(), vec![name.clone()]].concat();
            match (shape.many, shape.at.filter(At::is_table)) {
                (Some(Kind::Map), of) => {
                    let each = [path.clone(), vec!["\"NAME\"".to_owned()]].concat();
                    inner.push((Table::new(path, Kind::Always, doc), None, None));
                    inner.extend(of.map(|of| (Table::new(each, Kind::Map, Doc::of(of.attributes())), Some(of), None)));
                }
                (many, Some(of)) => {
                    let kind = many.unwrap_or(if shape.is_optional { Kind::Optional } else { Kind::Always });
                    let default = default.filter(toml::Value::is_table).or_else(|| defaults_of(&path));
                    inner.push((Table::new(path, kind, doc), Some(of), default));
                }
                (_, None) => table.keys.push(Self::key(name, &shape, doc, default.as_ref())),
            }
        }
        tables.push(table);
        for (table, of, defaults) in inner {
            match of {
                Some(of) => self.walk(of, table, defaults.as_ref(), tables),
                None => tables.push(table),
            }
        }
    }

    /// The keys of a type that is written as a table: its fields, or its variants, of which one is given.
    fn keys(&self, at: At<'_>) -> Vec<Key> {
        if let Item::Enum(choice) = at.item {
            let key = |variant: &syn::Variant| {
                let field = variant.fields.iter().next().expect("the variant of a table has a value");
                let name = variant.ident.to_string().to_lowercase();
                Key {
                    is_optional: true,
                    ..Self::key(name, &self.shape(at.source, &field.ty), Doc::of(&variant.attrs), None)
                }
            };
            return choice.variants.iter().map(key).collect();
        }
        let key = |field| Self::key(key_of(field), &self.shape(at.source, &field.ty), Doc::of(&field.attrs), None);
        at.fields().map(key).collect()
    }

    fn key(name: String, shape: &Shape<'_>, doc: Doc, default: Option<&toml::Value>) -> Key {
        let choices = shape.at.map_or_else(Vec::new, At::choices);
        let words = match shape.name.as_str() {
            _ if !choices.is_empty() => "string",
            name => {
                let known = TYPES.iter().map(|(name, words, _)| (*name, *words)).chain(PLAIN);
                let words = known.into_iter().find(|(known, _)| *known == name).map(|(_, words)| words);
                words.unwrap_or_else(|| panic!("{name} is not in TYPES or PLAIN of tests/tidy/settings/schema.rs"))
            }
        };
        let words = if shape.many == Some(Kind::List) { format!("list of {words}s") } else { words.to_owned() };
        // Everything that is empty, where it must be given, is not a default.
        let default = default.filter(|value| value.as_str() != Some("")).map(ToString::to_string);
        let Doc { text, not_set, examples } = doc;
        let example = examples.into_iter().next();
        Key { name, words, doc: text, not_set, example, default, is_optional: shape.is_optional, choices }
    }

    fn shape<'a>(&'a self, source: &'a Source, of: &syn::Type) -> Shape<'a> {
        let syn::Type::Path(of) = of else { panic!("a setting has a type that is no path") };
        let last = of.path.segments.last().expect("a path has a name");
        let inner = |n: usize| match &last.arguments {
            PathArguments::AngleBracketed(arguments) => match arguments.args.get(n) {
                Some(GenericArgument::Type(of)) => self.shape(source, of),
                _ => panic!("{} takes a type", last.ident),
            },
            _ => panic!("{} takes types", last.ident),
        };
        match last.ident.to_string().as_str() {
            "Option" => Shape { is_optional: true, ..inner(0) },
            "Vec" => Shape { many: Some(Kind::List), ..inner(0) },
            "BTreeMap" => Shape { many: Some(Kind::Map), ..inner(1) },
            _ => {
                let names: Vec<_> = of.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
                let (name, modules) = names.split_last().expect("a path has a name");
                let path = modules.last().map_or_else(|| name.clone(), |module| format!("{module}::{name}"));
                match self.look(Some(source), &path) {
                    Some(At { source, item: Item::Type(alias) }) if TYPES.iter().all(|(known, ..)| known != name) => {
                        self.shape(source, &alias.ty)
                    }
                    at => Shape { is_optional: false, many: None, name: name.clone(), at },
                }
            }
        }
    }
}

/// The defaults of a table that is not there by default, if all of its keys have one.
fn defaults_of(path: &[String]) -> Option<toml::Value> {
    let given = toml::from_str::<Config>(&format!("[{}]", path.join("."))).ok()?;
    let given = toml::Value::try_from(given).expect("settings are TOML");
    path.iter().try_fold(&given, |value, name| value.get(name)).cloned()
}

impl<'a> At<'a> {
    fn attributes(self) -> &'a [Attribute] {
        match self.item {
            Item::Struct(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            _ => &[],
        }
    }

    /// Whether it is written as a table.
    fn is_table(&self) -> bool {
        self.derives_deserialize() && self.fields().next().is_some()
    }

    fn derives_deserialize(self) -> bool {
        let has = |attribute: &Attribute| match &attribute.meta {
            Meta::List(list) if list.path.is_ident("derive") => list.tokens.to_string().contains("Deserialize"),
            _ => false,
        };
        self.attributes().iter().any(has)
    }

    fn fields(self) -> impl Iterator<Item = &'a Field> {
        let fields = match self.item {
            Item::Struct(item) => Some(&item.fields),
            _ => None,
        };
        let is_skipped = |attribute: &Attribute| {
            attribute.path().is_ident("serde") && attribute.parse_args::<syn::Ident>().is_ok_and(|word| word == "skip")
        };
        let named = fields.into_iter().filter(|fields| matches!(fields, Fields::Named(_))).flatten();
        named.filter(move |field| !field.attrs.iter().any(is_skipped))
    }

    /// The strings that it is written as, if it is one of some.
    fn choices(self) -> Vec<(String, String)> {
        let Item::Enum(item) = self.item else { return Vec::new() };
        // One whose variants have values is not a list of strings.
        if !self.derives_deserialize() || item.variants.iter().any(|variant| !variant.fields.is_empty()) {
            return Vec::new();
        }
        let case = serde("rename_all", &item.attrs);
        let choice = |variant: &syn::Variant| {
            let ident = variant.ident.to_string();
            let name = serde("rename", &variant.attrs).unwrap_or_else(|| match case.as_deref() {
                Some("lowercase") => ident.to_lowercase(),
                Some("snake_case") => snake_case(&ident),
                Some("kebab-case") => snake_case(&ident).replace('_', "-"),
                other => panic!("{ident}: rename_all = {other:?} is not known here"),
            });
            (format!("\"{name}\""), Doc::of(&variant.attrs).text)
        };
        item.variants.iter().map(choice).collect()
    }
}

impl Doc {
    fn of(attributes: &[Attribute]) -> Self {
        let line = |attribute: &Attribute| match &attribute.meta {
            Meta::NameValue(doc) if doc.path.is_ident("doc") => match &doc.value {
                Expr::Lit(text) => match &text.lit {
                    Lit::Str(text) => Some(text.value().trim().to_owned()),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        };
        let lines: Vec<_> = attributes.iter().filter_map(line).collect();
        let mut doc = Self::default();
        for paragraph in lines.split(String::is_empty).map(|lines| lines.join(" ")) {
            if let Some(text) = paragraph.strip_prefix("Not set: ") {
                doc.not_set = Some(text.to_owned());
            } else if let Some(value) = paragraph.strip_prefix("Example: ") {
                doc.examples.push(value.trim_matches('`').to_owned());
            } else {
                doc.text += if doc.text.is_empty() { "" } else { " " };
                doc.text += &paragraph;
            }
        }
        doc
    }
}

/// The key that a field is written under.
fn key_of(field: &Field) -> String {
    let ident = field.ident.as_ref().expect("a field of a table has a name").to_string();
    serde("rename", &field.attrs).unwrap_or(ident)
}

fn name_of(item: &Item) -> Option<&syn::Ident> {
    match item {
        Item::Struct(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        _ => None,
    }
}

/// What `#[serde(key = "…")]` says.
fn serde(key: &str, attributes: &[Attribute]) -> Option<String> {
    let mut found = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        let read = attribute.parse_nested_meta(|meta| {
            let value = meta.input.peek(Token![=]).then(|| meta.value()?.parse::<syn::LitStr>()).transpose()?;
            if meta.path.is_ident(key) {
                found = value.map(|value| value.value());
            }
            Ok(())
        });
        read.expect("an attribute of serde can be read");
    }
    found
}

fn snake_case(ident: &str) -> String {
    let mut name = String::new();
    for (n, c) in ident.char_indices() {
        if c.is_uppercase() && n > 0 {
            name.push('_');
        }
        name.extend(c.to_lowercase());
    }
    name
}

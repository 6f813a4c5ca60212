//! Writes the tables that all threads share: stacks, functions, modules, source files, and all
//! strings. The tables of single threads are written in `firefox`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;

use super::column::{Column, length, numbers, same};
use crate::model::{SourceLine, Trace};
use crate::sink::frames::Frames;
use crate::sink::stacks::{Node, Parent, StackTrie};
use crate::sink::text::Text;

/// The first strings of the table. The names of the functions follow, in order of their numbers.
pub(super) const STRINGS: [&str; 3] = ["custom event", "typed event", "events lost"];
/// Indexes of the names of markers in the table.
pub(super) const CUSTOM_EVENT: u64 = 0;
pub(super) const TYPED_EVENT: u64 = 1;
pub(super) const EVENTS_LOST: u64 = 2;

/// Modules or files, numbered in the order of their first use.
struct Numbered<K> {
    numbers: BTreeMap<K, u64>,
    names: Vec<String>,
}

/// Writes the tables, after all stacks and functions are known.
pub(super) fn write(
    trace: &Trace,
    stacks: &StackTrie,
    frames: &mut Frames,
    text: &mut Text<'_>,
) -> io::Result<()> {
    text.put("\"shared\":{\"stackTable\":{");
    let nodes = || stacks.nodes().iter().enumerate();
    numbers(
        text,
        "frame",
        nodes().map(|(_, node)| Some(frames.get(node.function))),
    )?;
    // The distance to the caller's row, which is further up.
    let caller = |(at, node): (usize, &Node)| match node.parent {
        Parent::Root(_) => 0,
        Parent::Node(parent) => (at - parent) as u64,
    };
    numbers(text, "prefixOffset", nodes().map(|node| Some(caller(node))))?;
    length(text, stacks.nodes().len() as u64);

    let count = frames.functions().len() as u64;
    text.put("},\n\"frameTable\":{");
    numbers(text, "func", (0..count).map(Some))?;
    for (key, value) in [
        ("address", "-1"),
        ("lib", "-1"),
        ("inlineDepth", "0"),
        ("category", "null"),
        ("subcategory", "null"),
        ("nativeSymbol", "null"),
        ("innerWindowID", "0"),
        ("line", "null"),
        ("column", "null"),
        ("originalLocation", "null"),
    ] {
        same(text, key, value, count)?;
    }
    length(text, count);

    let (mut modules, mut files) = (Numbered::default(), Numbered::default());
    text.put("},\n\"funcTable\":{");
    let first = STRINGS.len() as u64;
    numbers(text, "name", (first..first + count).map(Some))?;
    let functions = || frames.functions().iter().map(|id| trace.function(*id));
    let mut column = Column::begin(text, "resource");
    for function in functions() {
        let module = function.and_then(|function| trace.module(function.module));
        match module {
            Some(module) => {
                let name = module.path.rsplit('/').next().unwrap_or_default();
                column.cell()?.number(modules.get(module.id, name));
            }
            None => column.cell()?.put("-1"),
        }
    }
    column.end();
    let source = || functions().map(|function| function?.source.as_ref());
    let file = source().map(|source| source.map(|source| files.get(&source.file, &source.file)));
    numbers(text, "source", file)?;
    let line =
        |source: Option<&SourceLine>| Some(u64::from(source?.line)).filter(|line| *line != 0);
    numbers(text, "lineNumber", source().map(line))?;
    for (key, value) in [
        ("isJS", "false"),
        ("relevantForJS", "false"),
        ("columnNumber", "null"),
        ("originalLocation", "null"),
    ] {
        same(text, key, value, count)?;
    }
    length(text, count);

    let (module_count, file_count) = (modules.names.len() as u64, files.names.len() as u64);
    let (first_module, first_file) = (first + count, first + count + module_count);
    text.put("},\n\"resourceTable\":{");
    numbers(text, "name", (first_module..first_file).map(Some))?;
    same(text, "host", "null", module_count)?;
    // The resource is a library.
    same(text, "type", "1", module_count)?;
    length(text, module_count);
    text.put("},\n\"sources\":{");
    numbers(
        text,
        "filename",
        (first_file..first_file + file_count).map(Some),
    )?;
    for (key, value) in [
        ("id", "null"),
        ("startLine", "1"),
        ("startColumn", "1"),
        ("sourceMapURL", "null"),
        ("content", "null"),
    ] {
        same(text, key, value, file_count)?;
    }
    length(text, file_count);
    text.put(
        "},\n\"nativeSymbols\":{\"libIndex\":[],\"address\":[],\"name\":[],\"functionSize\":[],\"length\":0},\
         \n\"sourceLocationTable\":{\"source\":[],\"line\":[],\"column\":[],\"length\":0},\n\"stringArray\":[",
    );
    let names = frames.functions().iter().map(|id| trace.function_name(*id));
    let all = STRINGS.into_iter().map(Cow::Borrowed).chain(names);
    let more = modules.names.iter().chain(&files.names);
    let mut comma = "";
    for name in all.chain(more.map(|name| Cow::Borrowed(name.as_str()))) {
        text.put(comma);
        comma = ",";
        text.json(&name);
        text.pass()?;
    }
    text.put("]}");
    Ok(())
}

// === impl Numbered ===

impl<K: Ord> Default for Numbered<K> {
    fn default() -> Self {
        Self {
            numbers: BTreeMap::new(),
            names: Vec::new(),
        }
    }
}

impl<K: Ord> Numbered<K> {
    /// The number of a key. A new key is stored with its name.
    fn get(&mut self, key: K, name: &str) -> u64 {
        *self.numbers.entry(key).or_insert_with(|| {
            self.names.push(name.to_owned());
            self.names.len() as u64 - 1
        })
    }
}

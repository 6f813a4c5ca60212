//! The selectors whose rules are in the command line itself: patterns, ids, properties.

use clap::builder::RangedU64ValueParser;
use xray_trace::instr_map::{CompiledSelection, Rule, Selection};
use xrayd_proto::v1 as proto;
use xrayd_proto::v1::rule::Rule as Kind;

use crate::failure::Failure;
use crate::parse;

/// The heading of these options in the help.
pub(crate) const HEADING: &str = "Which functions";

/// The selectors whose rules are in the command line itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Patterns {
    /// The function of this name: mangled, demangled, or demangled without parameters
    #[arg(long, value_name = "NAME", value_parser = parse::pattern, help_heading = HEADING)]
    function: Vec<String>,
    /// Functions whose demangled name matches a glob, such as 'ns::*'
    #[arg(long, value_name = "GLOB", value_parser = parse::pattern, help_heading = HEADING)]
    glob: Vec<String>,
    /// Functions in whose demangled name a regular expression is found
    #[arg(long, value_name = "RE", value_parser = parse::pattern, help_heading = HEADING)]
    regex: Vec<String>,
    /// Functions of a module, given by its file name or by a glob over its path
    #[arg(long, value_name = "LIB", value_parser = parse::pattern, help_heading = HEADING)]
    module: Vec<String>,
    /// Functions whose source file's path matches a glob, such as 'src/*'
    #[arg(long, value_name = "GLOB", value_parser = parse::pattern, help_heading = HEADING)]
    source: Vec<String>,
    /// The function with this id, as `xrayctl functions` lists it
    #[arg(long, value_name = "N", help_heading = HEADING)]
    id: Vec<u32>,
    /// Functions that the source marks with the attribute xray_always_instrument
    #[arg(long, help_heading = HEADING)]
    always_instrumented: bool,
    /// Functions with less code than this. A function of unknown size is not one of them
    #[arg(long, value_name = "BYTES", value_parser = size(), help_heading = HEADING)]
    smaller_than: Option<u64>,
    /// Every function
    #[arg(long, help_heading = HEADING)]
    all: bool,
    /// Exclude the function of this name
    #[arg(long, value_name = "NAME", value_parser = parse::pattern, help_heading = HEADING)]
    except_function: Vec<String>,
    /// Exclude functions whose demangled name matches a glob
    #[arg(long, value_name = "GLOB", value_parser = parse::pattern, help_heading = HEADING)]
    except_glob: Vec<String>,
    /// Exclude functions in whose demangled name a regular expression is found
    #[arg(long, value_name = "RE", value_parser = parse::pattern, help_heading = HEADING)]
    except_regex: Vec<String>,
    /// Exclude functions of a module
    #[arg(long, value_name = "LIB", value_parser = parse::pattern, help_heading = HEADING)]
    except_module: Vec<String>,
    /// Exclude functions whose source file's path matches a glob
    #[arg(long, value_name = "GLOB", value_parser = parse::pattern, help_heading = HEADING)]
    except_source: Vec<String>,
    /// Exclude the function with this id
    #[arg(long, value_name = "N", help_heading = HEADING)]
    except_id: Vec<u32>,
    /// Exclude functions that the source marks with the attribute xray_always_instrument
    #[arg(long, help_heading = HEADING)]
    except_always_instrumented: bool,
    /// Exclude functions with less code than this. A function of unknown size is not one of them
    #[arg(long, value_name = "BYTES", value_parser = size(), help_heading = HEADING)]
    except_smaller_than: Option<u64>,
}

// === impl Patterns ===

impl Patterns {
    /// Adds functions that match these globs.
    pub(crate) fn add_globs(&mut self, globs: Vec<String>) {
        self.glob.extend(globs);
    }

    /// Whether an option names a library, which may be loaded later.
    pub(crate) fn have_module(&self) -> bool {
        !self.module.is_empty()
    }

    /// What the options include.
    pub(crate) fn include(&self) -> Vec<Rule> {
        let patterns = [
            &self.function,
            &self.glob,
            &self.regex,
            &self.module,
            &self.source,
        ];
        let mut include = rules(patterns, &self.id);
        include.extend(self.always_instrumented.then_some(Rule::AlwaysInstrumented));
        include.extend(self.smaller_than.map(Rule::SmallerThan));
        if self.all {
            include.push(Rule::All);
        }
        include
    }

    /// What the `--except-…` options leave out.
    pub(crate) fn exclude(&self) -> Vec<Rule> {
        let patterns = [
            &self.except_function,
            &self.except_glob,
            &self.except_regex,
            &self.except_module,
            &self.except_source,
        ];
        let mut exclude = rules(patterns, &self.except_id);
        let marked = self.except_always_instrumented;
        exclude.extend(marked.then_some(Rule::AlwaysInstrumented));
        exclude.extend(self.except_smaller_than.map(Rule::SmallerThan));
        exclude
    }
}

/// The parser of the size of a function.
fn size() -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(1..=1 << 30)
}

/// The selection of `xrayctl functions PATTERN`: a glob if the pattern has wildcard characters,
/// else a part of the name.
pub(crate) fn pattern(pattern: &str) -> Result<Selection, Failure> {
    let glob = if pattern.contains(['*', '?', '[', ']', '{', '}', '\\']) {
        pattern.to_owned()
    } else {
        format!("*{pattern}*")
    };
    checked(vec![Rule::Glob(glob)], Vec::new())
}

/// A selection for the engine.
pub(crate) fn wire(selection: Selection) -> proto::Selection {
    let Selection { include, exclude } = selection;
    proto::Selection {
        include: include.into_iter().map(rule).collect(),
        exclude: exclude.into_iter().map(rule).collect(),
    }
}

/// Checks the patterns of a selection, before anything is changed.
pub(crate) fn checked(include: Vec<Rule>, exclude: Vec<Rule>) -> Result<Selection, Failure> {
    let selection = Selection { include, exclude };
    CompiledSelection::new(&selection).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(selection)
}

fn rules(patterns: [&Vec<String>; 5], ids: &[u32]) -> Vec<Rule> {
    let kinds: [fn(String) -> Rule; 5] = [
        Rule::Function,
        Rule::Glob,
        Rule::Regex,
        Rule::Module,
        Rule::Source,
    ];
    let named = patterns
        .into_iter()
        .zip(kinds)
        .flat_map(|(patterns, kind)| patterns.iter().cloned().map(kind));
    named.chain(ids.iter().copied().map(Rule::Id)).collect()
}

fn rule(rule: Rule) -> proto::Rule {
    let kind = match rule {
        Rule::Function(name) => Kind::Function(name),
        Rule::Glob(glob) => Kind::Glob(glob),
        Rule::Regex(regex) => Kind::Regex(regex),
        Rule::Module(module) => Kind::Module(module),
        Rule::Source(glob) => Kind::Source(glob),
        Rule::Id(id) => Kind::Id(id),
        Rule::AlwaysInstrumented => Kind::AlwaysInstrumented(true),
        Rule::SmallerThan(bytes) => Kind::SmallerThan(bytes),
        Rule::All => Kind::All(true),
    };
    proto::Rule { rule: Some(kind) }
}

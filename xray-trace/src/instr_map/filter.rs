//! Selections of functions: by name, pattern, module, source file or id. They compare names only,
//! and read no file.

use std::borrow::Cow;
use std::collections::HashSet;

use globset::Glob;
use regex_automata::{meta::Regex, util::syntax};
use serde::{Deserialize, Serialize};

use super::names::{without_llvm_suffix, without_parameters, without_return_type};

/// The longest pattern, in bytes.
const LONGEST_PATTERN: usize = 4096;
/// The most patterns in one selection. Plain names and ids do not count.
const MOST_PATTERNS: usize = 1024;
/// The most memory for one compiled automaton, in bytes. A pattern has two.
const AUTOMATON_SIZE: usize = 1 << 20;
/// The most memory for the states of one pattern that are computed while it is matched, in bytes.
const STATES_SIZE: usize = 64 << 10;
/// The most memory for the compiled patterns of one selection, in bytes.
const SELECTION_SIZE: usize = 16 << 20;
/// Memory for a name or an id in a table, in bytes.
const NAME_SIZE: usize = 128;
/// The number of forms of a name with all its suffixes.
const WHOLE_FORMS: usize = 5;
/// Memory for a pattern without its automata, in bytes: settings, handles, the pool of its caches.
const PATTERN_SIZE: usize = 2 << 10;

/// A selection of functions: those that match a rule of `include` and no rule of `exclude`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Selection {
    /// The functions to select. An empty list selects none.
    pub include: Vec<Rule>,
    /// The functions to leave out.
    pub exclude: Vec<Rule>,
}

/// One rule for functions.
///
/// Names are compared with the symbol, and with the demangled name in four forms: whole, without
/// its return type, without its parameters, and without both. A name with a suffix of LLVM
/// (`.llvm.77`) is also compared without that suffix, so that its short name selects the function.
/// In globs `*` and `?` also match `/` and `:`, and a `\` makes `[`, `{` and `\` literal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The function with exactly this name.
    Function(String),
    /// Functions whose whole name matches this glob.
    Glob(String),
    /// Functions whose name contains a match of this regular expression.
    Regex(String),
    /// Functions of a module: its file name (`libfoo.so.1`), the file name without its version
    /// (`libfoo.so`) or its ending (`libfoo`), or a glob on its whole path.
    Module(String),
    /// Functions from source files whose path matches this glob. A relative glob may match after
    /// any `/`.
    Source(String),
    /// The function with this id.
    Id(u32),
    /// Functions that the source marks with the attribute `xray_always_instrument`.
    AlwaysInstrumented,
    /// Functions with less code than this many bytes. A function of unknown size is not one of
    /// them.
    SmallerThan(u64),
    /// Every function.
    All,
}

/// A function to test.
#[derive(Clone, Copy, Debug, Default)]
pub struct Candidate<'a> {
    /// Its id.
    pub id: u32,
    /// The path of its module.
    pub module: &'a str,
    /// Its symbol, if known.
    pub symbol: Option<&'a str>,
    /// Its demangled name.
    pub name: &'a str,
    /// The path of its source file, if known.
    pub source: Option<&'a str>,
    /// The size of its code in bytes; 0 if unknown.
    pub size: u64,
    /// True if the source marks it with the attribute `xray_always_instrument`.
    pub always_instrumented: bool,
}

/// Reasons why a selection cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// A glob is malformed.
    #[error("invalid glob '{glob}': {reason}")]
    Glob {
        /// The glob.
        glob: String,
        /// The reason.
        reason: String,
    },
    /// A regular expression is malformed or too big.
    #[error("invalid regular expression '{regex}': {reason}")]
    Regex {
        /// The expression.
        regex: String,
        /// The reason.
        reason: String,
    },
    /// A pattern is too long.
    #[error("a pattern of {length} bytes is too long: the maximum is {LONGEST_PATTERN} bytes")]
    TooLong {
        /// Its length.
        length: usize,
    },
    /// The compiled patterns together are too big.
    #[error(
        "the patterns take more than {} MiB of memory; use simpler or fewer patterns",
        SELECTION_SIZE >> 20
    )]
    TooBig,
    /// There are too many patterns.
    #[error("{count} patterns: the maximum is {MOST_PATTERNS} (names and ids do not count)")]
    TooMany {
        /// The number of patterns.
        count: usize,
    },
}

/// A compiled [`Selection`].
#[derive(Clone, Debug)]
pub struct CompiledSelection {
    include: Rules,
    exclude: Rules,
    size: usize,
}

/// One side of a selection, by kind of rule.
#[derive(Clone, Debug, Default)]
struct Rules {
    all: bool,
    ids: HashSet<u32>,
    names: HashSet<String>,
    globs: Vec<Regex>,
    regexes: Vec<Regex>,
    modules: Vec<(String, Regex)>,
    sources: Vec<Regex>,
    always_instrumented: bool,
    /// The greatest of all such sizes; 0 for none.
    smaller_than: u64,
}

/// Compiles patterns and adds up the memory that they take.
#[derive(Debug, Default)]
struct Compiler {
    /// Bytes of all patterns so far.
    size: usize,
}

/// How an automaton reads its haystack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// As text: `.` is a character.
    Text,
    /// As bytes, which globs need.
    Bytes,
}

// === impl Selection ===

impl Selection {
    /// The selection of every function.
    pub fn all() -> Self {
        Self {
            include: vec![Rule::All],
            exclude: Vec::new(),
        }
    }
}

// === impl CompiledSelection ===

impl CompiledSelection {
    /// Compiles a selection.
    ///
    /// # Errors
    ///
    /// The first bad pattern, and what is wrong with it, in one line; or a limit that the selection
    /// exceeds.
    pub fn new(selection: &Selection) -> Result<Self, SelectionError> {
        let Selection { include, exclude } = selection;
        let count = include
            .iter()
            .chain(exclude)
            .filter(|rule| rule.is_pattern())
            .count();
        if count > MOST_PATTERNS {
            return Err(SelectionError::TooMany { count });
        }
        let mut compiler = Compiler::default();
        let (include, exclude) = (
            Rules::new(include, &mut compiler)?,
            Rules::new(exclude, &mut compiler)?,
        );
        Ok(Self {
            include,
            exclude,
            size: compiler.size,
        })
    }

    /// Bytes of memory that the selection takes: its compiled patterns, and its texts. While a
    /// clone is matched, the clone takes up to 128 KiB more for each pattern.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether the function is selected.
    pub fn matches(&self, candidate: &Candidate<'_>) -> bool {
        if !self.include.needs_names() && !self.exclude.needs_names() {
            return self.include.matches(candidate, &[]) && !self.exclude.matches(candidate, &[]);
        }
        let short = without_llvm_suffix(candidate.name);
        let forms = name_forms(candidate, &short);
        // Most names have no such suffix. Their other forms would be the same again.
        let forms = match short {
            Cow::Borrowed(short) if short.len() == candidate.name.len() => &forms[..WHOLE_FORMS],
            _ => &forms[..],
        };
        self.include.matches(candidate, forms) && !self.exclude.matches(candidate, forms)
    }

    /// Whether a rule needs source files, so that the caller has to look them up.
    pub fn needs_source(&self) -> bool {
        !self.include.sources.is_empty() || !self.exclude.sources.is_empty()
    }
}

// === impl Rule ===

impl Rule {
    fn is_pattern(&self) -> bool {
        match self {
            Self::Glob(_) | Self::Regex(_) | Self::Module(_) | Self::Source(_) => true,
            Self::Function(_)
            | Self::Id(_)
            | Self::AlwaysInstrumented
            | Self::SmallerThan(_)
            | Self::All => false,
        }
    }

    /// Bytes of memory for the text of the rule.
    fn text_size(&self) -> usize {
        match self {
            Self::All | Self::Id(_) | Self::AlwaysInstrumented | Self::SmallerThan(_) => NAME_SIZE,
            Self::Function(text) => NAME_SIZE + 2 * text.len(),
            Self::Glob(text) | Self::Regex(text) | Self::Module(text) | Self::Source(text) => {
                PATTERN_SIZE + 2 * text.len()
            }
        }
    }
}

// === impl Rules ===

impl Rules {
    fn new(rules: &[Rule], compiler: &mut Compiler) -> Result<Self, SelectionError> {
        let mut compiled = Self::default();
        for rule in rules {
            // The first `All` is free, so that a user at the quota can still select everything.
            if *rule != Rule::All || compiled.all {
                compiler.size += rule.text_size();
            }
            match rule {
                Rule::All => compiled.all = true,
                Rule::Id(id) => {
                    compiled.ids.insert(*id);
                }
                Rule::AlwaysInstrumented => compiled.always_instrumented = true,
                Rule::SmallerThan(bytes) => {
                    compiled.smaller_than = compiled.smaller_than.max(*bytes);
                }
                Rule::Function(name) => {
                    compiled.names.insert(name.clone());
                }
                Rule::Glob(text) => compiled.globs.push(compiler.glob(text)?),
                Rule::Regex(text) => compiled.regexes.push(compiler.regex(text)?),
                Rule::Module(text) => compiled.modules.push((text.clone(), compiler.glob(text)?)),
                Rule::Source(text) => {
                    compiled.sources.push(compiler.glob(text)?);
                    if !text.starts_with('/') {
                        compiled.sources.push(compiler.glob(&format!("*/{text}"))?);
                    }
                }
            }
        }
        Ok(compiled)
    }

    /// Whether a rule looks at names. Making the forms of a name takes most of the time of a match.
    fn needs_names(&self) -> bool {
        let no_names = self.names.is_empty() && self.globs.is_empty() && self.regexes.is_empty();
        !self.all && !no_names
    }

    fn matches(&self, candidate: &Candidate<'_>, forms: &[&str]) -> bool {
        self.all
            || self.ids.contains(&candidate.id)
            || self.always_instrumented && candidate.always_instrumented
            || (1..self.smaller_than).contains(&candidate.size)
            || forms.iter().any(|form| self.names.contains(*form))
            || self
                .globs
                .iter()
                .any(|glob| forms.iter().any(|form| glob.is_match(form)))
            || self
                .regexes
                .iter()
                .any(|regex| forms.iter().any(|form| regex.is_match(form)))
            || self.modules.iter().any(|(name, glob)| {
                is_module(name, candidate.module) || glob.is_match(candidate.module)
            })
            || candidate
                .source
                .is_some_and(|source| self.sources.iter().any(|glob| glob.is_match(source)))
    }
}

/// The forms of a function's name that rules are compared with. `short` is the name without the
/// suffix of LLVM; its forms come after the first [`WHOLE_FORMS`].
fn name_forms<'a>(candidate: &Candidate<'a>, short: &'a str) -> [&'a str; WHOLE_FORMS + 4] {
    let name = candidate.name;
    let bare = without_return_type(name);
    let short_bare = without_return_type(short);
    [
        name,
        candidate.symbol.unwrap_or(name),
        bare,
        without_parameters(name),
        without_parameters(bare),
        short,
        short_bare,
        without_parameters(short),
        without_parameters(short_bare),
    ]
}

/// Whether `text` is the file name of the path, with or without version and ending: `libfoo` and
/// `libfoo.so` name `libfoo.so.1`.
fn is_module(text: &str, path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    match file.strip_prefix(text) {
        Some("") => true,
        Some(".so") => !text.is_empty(),
        Some(rest) if rest.starts_with(".so.") => !text.is_empty(),
        Some(rest) => rest.starts_with('.') && (text.ends_with(".so") || text.contains(".so.")),
        None => false,
    }
}

// === impl Compiler ===

impl Compiler {
    fn glob(&mut self, text: &str) -> Result<Regex, SelectionError> {
        check_length(text)?;
        let bad = |reason: String| SelectionError::Glob {
            glob: text.to_owned(),
            reason,
        };
        let glob = Glob::new(text).map_err(|error| bad(error.kind().to_string()))?;
        self.compile(glob.regex(), Reading::Bytes, bad)
    }

    fn regex(&mut self, text: &str) -> Result<Regex, SelectionError> {
        check_length(text)?;
        self.compile(text, Reading::Text, |reason| SelectionError::Regex {
            regex: text.to_owned(),
            reason,
        })
    }

    /// Compiles a pattern into the form that takes the least memory: two automata. Their states are
    /// computed while they are matched, within bounds, and are dropped with the clone that was
    /// matched.
    fn compile(
        &mut self,
        pattern: &str,
        reading: Reading,
        bad: impl Fn(String) -> SelectionError,
    ) -> Result<Regex, SelectionError> {
        let text = reading == Reading::Text;
        let config = Regex::config()
            .utf8_empty(text)
            .nfa_size_limit(Some(AUTOMATON_SIZE))
            .hybrid_cache_capacity(STATES_SIZE)
            .dfa(false)
            .onepass(false)
            .backtrack(false);
        let syntax = syntax::Config::new().utf8(text).dot_matches_new_line(!text);
        let built = Regex::builder()
            .configure(config)
            .syntax(syntax)
            .build(pattern);
        let built = built.map_err(|error| {
            if let Some(limit) = error.size_limit() {
                return bad(format!(
                    "its compiled form exceeds the limit of {limit} bytes"
                ));
            }
            // A syntax error has several lines with a drawing; the last line is the message.
            let drawn = error
                .syntax_error()
                .map_or_else(|| error.to_string(), ToString::to_string);
            let last = drawn.lines().last().unwrap_or_default();
            bad(last.strip_prefix("error: ").unwrap_or(last).to_owned())
        })?;
        self.size += built.memory_usage() + built.create_cache().memory_usage();
        if self.size > SELECTION_SIZE {
            return Err(SelectionError::TooBig);
        }
        Ok(built)
    }
}

fn check_length(text: &str) -> Result<(), SelectionError> {
    if text.len() > LONGEST_PATTERN {
        return Err(SelectionError::TooLong { length: text.len() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Candidate<'_> = Candidate {
        id: 7,
        module: "/usr/lib/libfoo.so.1.2",
        symbol: Some("_ZN2ns3maxIiEET_S1_S1_"),
        name: "int ns::max<int>(int, int)",
        source: Some("/home/dev/src/math/max.cc"),
        size: 40,
        always_instrumented: false,
    };

    #[test]
    fn a_short_name_selects_every_clone_of_llvm() {
        for (name, rule, selected) in [
            ("f(int) (.llvm.77)", "f(int)", true),
            ("f(int) (.llvm.77)", "f", true),
            ("f(int) (.llvm.77)", "f(int) (.llvm.77)", true),
            ("f(int) (.llvm.77)", "f(int) (.llvm.78)", false),
            ("void f<int>(int) (.llvm.77)", "f<int>(int)", true),
            ("f.llvm.77", "f", true),
            ("f.llvm.77", "f.llvm.77", true),
            ("f", "f.llvm.77", false),
            ("receive_batch (.llvm.77)", "receive_batch", true),
        ] {
            let selection = Selection {
                include: vec![Rule::Function(rule.to_owned())],
                exclude: Vec::new(),
            };
            let candidate = Candidate {
                symbol: None,
                name,
                ..MAX
            };
            let compiled = CompiledSelection::new(&selection).unwrap();
            assert_eq!(compiled.matches(&candidate), selected, "{name} by {rule}");
        }
    }

    fn matches(include: Vec<Rule>, exclude: Vec<Rule>) -> bool {
        CompiledSelection::new(&Selection { include, exclude })
            .unwrap()
            .matches(&MAX)
    }

    #[test]
    fn a_function_is_found_by_each_of_its_names_and_nothing_else() {
        for (name, expected) in [
            ("_ZN2ns3maxIiEET_S1_S1_", true),
            ("int ns::max<int>(int, int)", true),
            ("ns::max<int>(int, int)", true),
            ("int ns::max<int>", true),
            ("ns::max<int>", true),
            ("ns::max", false),
            ("max", false),
            ("", false),
        ] {
            assert_eq!(
                matches(vec![Rule::Function(name.into())], vec![]),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn patterns_match_as_documented() {
        let (glob, regex) = (
            Rule::Glob as fn(String) -> Rule,
            Rule::Regex as fn(String) -> Rule,
        );
        let (module, source) = (
            Rule::Module as fn(String) -> Rule,
            Rule::Source as fn(String) -> Rule,
        );
        for (rule, text, expected) in [
            (glob, "ns::*", true),
            (glob, "ns::max<*>", true),
            (glob, "*max*", true),
            (glob, "max*", false),
            (glob, "{ns,other}::*", true),
            (regex, "^ns::", true),
            (regex, "max<int>$", true),
            (regex, "^max", false),
            (module, "libfoo", true),
            (module, "libfoo.so", true),
            (module, "libfoo.so.1", true),
            (module, "libfoo.so.1.2", true),
            (module, "libfo", false),
            (module, "libfoo.so.1.", false),
            (module, "", false),
            (module, "/usr/lib/*", true),
            (module, "/usr/lib/libfoo.so.1.2", true),
            (module, "/opt/*", false),
            (source, "src/*", true),
            (source, "math/*.cc", true),
            (source, "max.cc", true),
            (source, "ath/*.cc", false),
            (source, "/home/*", true),
            (source, "/src/*", false),
        ] {
            assert_eq!(matches(vec![rule(text.into())], vec![]), expected, "{text}");
        }
    }

    #[test]
    fn functions_are_found_by_their_size_and_by_their_attribute() {
        let is_found = |rule, size, always_instrumented| {
            let selection = Selection {
                include: vec![rule],
                exclude: vec![],
            };
            let candidate = Candidate {
                size,
                always_instrumented,
                ..MAX
            };
            CompiledSelection::new(&selection)
                .unwrap()
                .matches(&candidate)
        };
        for (size, expected) in [(0, false), (1, true), (39, true), (40, false)] {
            assert_eq!(is_found(Rule::SmallerThan(40), size, true), expected);
        }
        assert!(!is_found(Rule::SmallerThan(0), 0, true));
        for marked in [true, false] {
            assert_eq!(is_found(Rule::AlwaysInstrumented, 0, marked), marked);
        }
        assert!(!matches(vec![Rule::All], vec![Rule::SmallerThan(41)]));
        assert!(matches(
            vec![Rule::SmallerThan(41), Rule::SmallerThan(1)],
            vec![Rule::AlwaysInstrumented]
        ));
    }

    #[test]
    fn excluded_functions_are_left_out_and_an_empty_selection_selects_none() {
        assert!(matches(vec![Rule::All], vec![]));
        assert!(matches(vec![Rule::Id(7)], vec![Rule::Id(8)]));
        assert!(!matches(vec![Rule::All], vec![Rule::Glob("ns::*".into())]));
        assert!(!matches(vec![], vec![]));
    }

    #[test]
    fn a_bad_pattern_is_refused_in_one_line() {
        for (rule, message) in [
            (
                Rule::Regex("(foo".into()),
                "invalid regular expression '(foo': unclosed group",
            ),
            (
                Rule::Glob("operator[".into()),
                "invalid glob 'operator[': unclosed character class; missing ']'",
            ),
            (
                Rule::Regex("a{1000}{1000}".into()),
                "invalid regular expression 'a{1000}{1000}': its compiled form exceeds the limit \
                 of 1048576 bytes",
            ),
            (
                Rule::Source("x".repeat(5000)),
                "a pattern of 5000 bytes is too long: the maximum is 4096 bytes",
            ),
        ] {
            let selection = Selection {
                include: vec![rule],
                exclude: vec![],
            };
            assert_eq!(
                CompiledSelection::new(&selection).unwrap_err().to_string(),
                message
            );
        }
        let many = Selection {
            include: vec![Rule::Glob("a".into()); 2000],
            exclude: vec![],
        };
        assert_eq!(
            CompiledSelection::new(&many).unwrap_err(),
            SelectionError::TooMany { count: 2000 }
        );
    }

    #[test]
    fn a_selection_is_read_from_json() {
        let text = r#"{"include":[{"glob":"ns::*"},"all",{"id":3},{"smaller-than":9}]}"#;
        let selection: Selection = serde_json::from_str(text).unwrap();
        assert_eq!(
            selection.include,
            [
                Rule::Glob("ns::*".into()),
                Rule::All,
                Rule::Id(3),
                Rule::SmallerThan(9)
            ]
        );
        assert!(selection.exclude.is_empty());
        assert!(!CompiledSelection::new(&selection).unwrap().needs_source());
    }

    #[test]
    fn repeated_rules_without_a_text_take_memory() {
        let size = |include| {
            let exclude = Vec::new();
            let selection = Selection { include, exclude };
            CompiledSelection::new(&selection).unwrap().size()
        };
        assert_eq!(size(vec![Rule::All]), 0);
        for rule in [Rule::All, Rule::Id(7)] {
            assert!(size(vec![rule; 1000]) >= 999 * size_of::<Rule>());
        }
    }
}

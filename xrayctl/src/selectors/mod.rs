//! `--function`, `--glob`, … and their `--except-…` counterparts.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use xray_trace::instr_map::{Rule, Selection};

use crate::failure::Failure;

mod of_trace;
mod patterns;

pub(crate) use patterns::{pattern, wire};

use of_trace::Measure;
use patterns::{HEADING, Patterns};

/// Functions of a trace, unless `--from-top` names another number.
const TOP: usize = 100;

/// What becomes of selectors that name nothing yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub(crate) struct Pending {
    /// If no loaded function matches the selectors, wait for libraries that are loaded later.
    /// --module implies this option
    #[arg(long, help_heading = HEADING)]
    pending: bool,
}

/// The result of selectors that match no loaded function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoMatch {
    /// The command fails.
    Fails,
    /// The selectors wait for libraries that are loaded later.
    Waits,
}

/// Which functions a command is about. What an `--except-…` option names is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Selectors {
    #[command(flatten)]
    patterns: Patterns,
    /// The functions that stand out in a trace or a profile, see --from-top and --from-by
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    from_trace: Vec<PathBuf>,
    /// Exclude the functions that stand out in a trace or a profile
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    except_from_trace: Vec<PathBuf>,
    /// The number of functions of --from-trace and --except-from-trace, 1 to 10000
    #[arg(
        long,
        value_name = "N",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000),
        help_heading = HEADING
    )]
    from_top: Option<usize>,
    /// The measure by which these functions stand out
    #[arg(long, value_name = "MEASURE", help_heading = HEADING)]
    from_by: Option<Measure>,
}

// === impl Selectors ===

impl Selectors {
    /// Adds functions that match these globs.
    pub(crate) fn add_globs(&mut self, globs: Vec<String>) {
        self.patterns.add_globs(globs);
    }

    /// The selection; `None` if no option includes functions.
    pub(crate) fn selection(&self) -> Result<Option<Selection>, Failure> {
        let include = self.include()?;
        if include.is_empty() {
            return Ok(None);
        }
        let exclude = self.exclude()?;
        patterns::checked(include, exclude).map(Some)
    }

    /// The selection. If no option includes functions, it has all but the excepted ones.
    pub(crate) fn selection_or_all(&self) -> Result<Selection, Failure> {
        let mut include = self.include()?;
        if include.is_empty() {
            include.push(Rule::All);
        }
        let exclude = self.exclude()?;
        patterns::checked(include, exclude)
    }

    /// The result if the selection matches no loaded function. It waits with `--pending`, and with
    /// the file name of a library, which may be loaded later.
    pub(crate) fn no_match(&self, pending: Pending) -> NoMatch {
        if pending.pending || self.patterns.have_module() {
            NoMatch::Waits
        } else {
            NoMatch::Fails
        }
    }

    fn include(&self) -> Result<Vec<Rule>, Failure> {
        let mut include = self.patterns.include();
        include.extend(self.of_traces(&self.from_trace)?);
        Ok(include)
    }

    fn exclude(&self) -> Result<Vec<Rule>, Failure> {
        let mut exclude = self.patterns.exclude();
        exclude.extend(self.of_traces(&self.except_from_trace)?);
        Ok(exclude)
    }

    /// Rules for the functions that stand out in these files.
    fn of_traces(&self, files: &[PathBuf]) -> Result<Vec<Rule>, Failure> {
        let has_files = !self.from_trace.is_empty() || !self.except_from_trace.is_empty();
        if !has_files && (self.from_top.is_some() || self.from_by.is_some()) {
            let what = "--from-top and --from-by need --from-trace or --except-from-trace";
            return Err(Failure::Usage(what.to_owned()));
        }
        let (top, by) = (
            self.from_top.unwrap_or(TOP),
            self.from_by.unwrap_or_default(),
        );
        let rules = files.iter().map(|file| of_trace::rules(file, top, by));
        Ok(rules.collect::<Result<Vec<_>, _>>()?.concat())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use xrayd_proto::v1 as proto;
    use xrayd_proto::v1::rule::Rule as Kind;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        selectors: Selectors,
    }

    fn parsed(line: &str) -> Selectors {
        let words = std::iter::once("test").chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().selectors
    }

    /// A selection in short: `function=a -glob=b`.
    fn brief(selection: Option<Selection>) -> String {
        let Some(proto::Selection { include, exclude }) = selection.map(wire) else {
            return "none".into();
        };
        let show = |sign: &str, rule: proto::Rule| match rule.rule.unwrap() {
            Kind::Function(name) => format!("{sign}function={name}"),
            Kind::Glob(glob) => format!("{sign}glob={glob}"),
            Kind::Regex(re) => format!("{sign}regex={re}"),
            Kind::Module(lib) => format!("{sign}module={lib}"),
            Kind::Source(glob) => format!("{sign}source={glob}"),
            Kind::Id(id) => format!("{sign}id={id}"),
            Kind::AlwaysInstrumented(marked) => format!("{sign}always={marked}"),
            Kind::SmallerThan(bytes) => format!("{sign}smaller={bytes}"),
            Kind::All(all) => format!("{sign}all={all}"),
        };
        let include = include.into_iter().map(|rule| show("", rule));
        let exclude = exclude.into_iter().map(|rule| show("-", rule));
        include.chain(exclude).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_option_becomes_its_rule_and_all_are_repeatable() {
        for (line, expected) in [
            ("", "none"),
            ("--except-glob x*", "none"),
            ("--function a --function b", "function=a function=b"),
            ("--glob ns::* --id 7 --id 8", "glob=ns::* id=7 id=8"),
            (
                "--regex ^a --module libc.so --source src/*",
                "regex=^a module=libc.so source=src/*",
            ),
            ("--all --except-function f", "all=true -function=f"),
            (
                "--always-instrumented --smaller-than 9 --except-always-instrumented",
                "always=true smaller=9 -always=true",
            ),
            ("--all --except-smaller-than 64", "all=true -smaller=64"),
            (
                "--all --except-glob g --except-regex r --except-module m --except-source s --except-id 3",
                "all=true -glob=g -regex=r -module=m -source=s -id=3",
            ),
        ] {
            assert_eq!(brief(parsed(line).selection().unwrap()), expected, "{line}");
        }
    }

    #[test]
    fn recording_without_a_selector_means_everything_not_excepted() {
        for (line, expected) in [
            ("", "all=true"),
            ("--except-id 3", "all=true -id=3"),
            ("--id 3", "id=3"),
        ] {
            assert_eq!(
                brief(Some(parsed(line).selection_or_all().unwrap())),
                expected
            );
        }
    }

    #[test]
    fn a_malformed_pattern_is_found_before_anything_is_touched() {
        for line in [
            "--regex (",
            "--glob [",
            "--all --except-regex *",
            "--source {",
        ] {
            assert!(
                matches!(parsed(line).selection(), Err(Failure::Usage(_))),
                "{line}"
            );
        }
        assert!(pattern("[").is_err());
    }

    #[test]
    fn a_pattern_without_wildcards_is_a_part_of_the_name() {
        for (text, expected) in [
            ("parse", "glob=*parse*"),
            ("ns::*", "glob=ns::*"),
            ("f?", "glob=f?"),
        ] {
            assert_eq!(brief(pattern(text).ok()), expected);
        }
    }
}

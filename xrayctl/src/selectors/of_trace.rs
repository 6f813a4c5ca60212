//! `--from-trace` and `--except-from-trace`: the functions that stand out in a trace or a profile,
//! as rules of a selection.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::ValueEnum;
use xray_trace::analysis::{
    AccountOptions, Direction, Filter, Graph, GroupBy, Siblings, SortBy, account, account_profile,
};
use xray_trace::instr_map::Rule;
use xray_trace::model::{FunctionId, Trace};

use crate::failure::Failure;
use crate::input::Logs;
use crate::log::Log;

/// The measure by which functions stand out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measure {
    /// Time in the function, without callees
    #[default]
    #[value(name = "self")]
    SelfTime,
    /// Time in the function, callees included
    Total,
    /// Number of calls
    Calls,
    /// Number of functions that call it
    Callers,
}

/// Rules for the first `top` functions of the file, those with the greatest measure first. A
/// function has its symbol as its name if the file has it. So it is found in other builds of the
/// program, too, and wherever it is loaded.
pub(crate) fn rules(path: &Path, top: usize, by: Measure) -> Result<Vec<Rule>, Failure> {
    let usage = |what: String| Failure::Usage(format!("{}: {what}", path.display()));
    let log = Logs::default().load(path);
    let (log, _) = log.map_err(|error| Failure::Usage(format!("{error:#}")))?;
    let functions = match (&log, by) {
        (Log::Trace(opened), Measure::Callers) => by_callers(&opened.trace),
        (Log::Profile(_), Measure::Callers) => {
            return Err(usage(
                "a profile has no callers; use --from-by calls".to_owned(),
            ));
        }
        (log, Measure::SelfTime) => sorted(log, SortBy::SelfTime),
        (log, Measure::Total) => sorted(log, SortBy::Total),
        (log, Measure::Calls) => sorted(log, SortBy::Calls),
    };
    let tables = log.tables();
    // Functions of several processes, or loads of a library, may have one name.
    let mut seen = BTreeSet::new();
    let names = functions.into_iter().filter_map(|id| {
        let function = tables.function(id)?;
        let name = function.symbol.as_ref().unwrap_or(&function.name);
        (!name.is_empty() && seen.insert(name.clone())).then(|| Rule::Function(name.clone()))
    });
    let rules: Vec<_> = names.take(top).collect();
    if rules.is_empty() {
        return Err(usage("it has no calls of functions with a name".to_owned()));
    }
    Ok(rules)
}

/// The functions with calls, the greatest of the table first.
fn sorted(log: &Log, by: SortBy) -> Vec<FunctionId> {
    let all = Filter::default();
    let mut table = match log {
        Log::Trace(opened) => account(&opened.trace, &all, AccountOptions::default()),
        Log::Profile(opened) => account_profile(&opened.profile, &all, GroupBy::Function),
    };
    table.sort(log.tables(), by, Direction::Descending);
    let rows = table.rows.iter();
    rows.filter_map(|row| row.subject.function()).collect()
}

/// The functions with callers, those with the most first.
fn by_callers(trace: &Trace) -> Vec<FunctionId> {
    let graph = Graph::new(trace, &Filter::default(), Siblings::default());
    let mut callers = BTreeMap::<FunctionId, usize>::new();
    for edge in graph.edges.iter().filter(|edge| edge.caller.is_some()) {
        *callers.entry(edge.callee).or_default() += 1;
    }
    let mut functions: Vec<_> = callers.into_iter().collect();
    functions.sort_by_key(|&(function, callers)| (std::cmp::Reverse(callers), function));
    functions
        .into_iter()
        .map(|(function, _)| function)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden(name: &str) -> std::path::PathBuf {
        let traces = concat!(env!("CARGO_MANIFEST_DIR"), "/../xray-trace/tests/golden/v1");
        Path::new(traces).join(name).with_extension("xtrace")
    }

    /// The functions, without the characters of mangling around their names.
    fn named(name: &str, top: usize, by: Measure) -> Vec<String> {
        let rules = rules(&golden(name), top, by).unwrap();
        let names = rules.into_iter().map(|rule| match rule {
            Rule::Function(name) => name,
            other => panic!("{other:?}"),
        });
        names.collect()
    }

    #[test]
    fn each_measure_has_its_own_order() {
        let all = named("lossless", 100, Measure::Calls);
        assert_eq!(all.len(), 20);
        for (by, first) in [
            (Measure::SelfTime, "_ZN4work9fibonacciEm"),
            (Measure::Total, "_ZN4work6intakeEm"),
            (Measure::Calls, "_ZN4work7descendEm"),
            (Measure::Callers, "_ZN4work6numberEm"),
        ] {
            let found = named("lossless", 3, by);
            assert_eq!(
                (found.len(), found[0].as_str()),
                (3, first),
                "{by:?} {found:?}"
            );
            assert!(found.iter().all(|name| all.contains(name)));
        }
        assert!(!named("profile", 5, Measure::SelfTime).is_empty());
    }

    #[test]
    fn a_file_that_cannot_serve_is_refused() {
        for (name, by, why) in [
            ("profile", Measure::Callers, "a profile has no callers"),
            ("absent", Measure::Calls, "cannot read"),
        ] {
            let error = rules(&golden(name), 5, by).unwrap_err();
            assert!(
                matches!(&error, Failure::Usage(what) if what.contains(why)),
                "{error:?}"
            );
        }
    }
}

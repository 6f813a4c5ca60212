//! Suggestions for misspelt names.
//!
//! The names come from programs and traces, which may be hostile. So the number and the length of
//! the names that are compared are bounded, and a suggestion is escaped.

use std::time::Duration;

use xray_trace::instr_map::without_parameters;
use xrayd_proto::v1::rule::Rule as Kind;
use xrayd_proto::v1::{FunctionBatch, ListFunctionsRequest, Selection};

use crate::client::Rpc;
use crate::output::text::printable;

/// The most names that are compared.
const MOST_NAMES: usize = 100_000;
/// The longest name that is compared, in bytes. Users paste longer names instead of typing them.
const LONGEST_NAME: usize = 200;
/// The most misspelt names of one command that get suggestions.
const MOST_WORDS: usize = 8;
/// The most suggestions.
const MOST_SHOWN: usize = 3;
/// The shortest text that is searched for inside of names.
const SHORTEST_PART: usize = 3;
/// The most edits between a misspelt name and its suggestion.
const MOST_EDITS: usize = 4;
/// The longest wait for the names of functions. Without them, there is no suggestion.
const PATIENCE: Duration = Duration::from_secs(2);

/// The similarity of a name to the wanted one. The most similar name comes first in the order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank<'a> {
    likeness: Likeness,
    edits: usize,
    length: usize,
    name: &'a str,
}

/// The way in which a name is similar.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Likeness {
    /// Few edits make the wanted name this one, or its last part, or the wanted name is inside of
    /// it. The latter counts as one edit.
    Whole,
    /// The last parts of both names are similar, and their namespaces are not.
    LastPart,
}

/// The names that are most similar to the wanted one: at most 3, the nearest first.
pub(crate) fn nearest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    if wanted.is_empty() || wanted.len() > LONGEST_NAME {
        return Vec::new();
    }
    let wanted = wanted.to_lowercase();
    let mut nearest: Vec<Rank<'a>> = Vec::new();
    for name in names.into_iter().take(MOST_NAMES) {
        let Some(rank) = rank(&wanted, name) else {
            continue;
        };
        // Overloaded functions have the same name.
        if let Err(at) = nearest.binary_search(&rank) {
            nearest.insert(at, rank);
            nearest.truncate(MOST_SHOWN);
        }
    }
    nearest.into_iter().map(|rank| rank.name).collect()
}

/// The suggestion for misspelt names as a part of a message: ` (did you mean a, b or c?)`. Empty if
/// no name is similar.
pub(crate) fn hint<'a>(
    wanted: &[String],
    names: impl IntoIterator<Item = &'a str> + Clone,
) -> String {
    let mut found: Vec<&str> = Vec::new();
    for wanted in wanted.iter().take(MOST_WORDS) {
        for name in nearest(wanted, names.clone()) {
            if !found.contains(&name) {
                found.push(name);
            }
        }
    }
    found.truncate(MOST_SHOWN);
    let shown: Vec<_> = found.into_iter().map(printable).collect();
    match shown.split_last() {
        None => String::new(),
        Some((only, [])) => format!(" (did you mean {only}?)"),
        Some((last, others)) => format!(" (did you mean {} or {last}?)", others.join(", ")),
    }
}

/// The [`hint`] for the functions that a selection names, from the functions of a process, or of
/// every attached process for pid 0.
pub(crate) async fn functions(rpc: &mut Rpc, pid: u32, selection: &Selection) -> String {
    let wanted = words(selection);
    if wanted.is_empty() {
        return String::new();
    }
    let mut names = Vec::new();
    // The names that arrived in time are compared.
    let _ = tokio::time::timeout(PATIENCE, list(rpc, pid, &mut names)).await;
    hint(&wanted, names.iter().map(String::as_str))
}

/// Appends the names of functions of a process, or of every attached process for pid 0, without
/// parameters.
pub(crate) async fn list(rpc: &mut Rpc, pid: u32, names: &mut Vec<String>) {
    let request = ListFunctionsRequest {
        pid,
        selection: None,
    };
    // An error is no reason to hide the error that the suggestion is for.
    let Ok(response) = rpc.list_functions(request).await else {
        return;
    };
    let mut batches = response.into_inner();
    while let Ok(Some(FunctionBatch { functions })) = batches.message().await {
        for function in functions {
            if names.len() >= MOST_NAMES {
                return;
            }
            let name = without_parameters(&function.name);
            if name.len() <= LONGEST_NAME {
                names.push(name.to_owned());
            }
        }
    }
}

/// The names of functions in a selection, without wildcards at their ends and without parameters.
fn words(selection: &Selection) -> Vec<String> {
    let plain = |c: char| c.is_alphanumeric() || "_:<>~.$ ".contains(c);
    let rules = selection.include.iter().take(MOST_WORDS);
    let words = rules.filter_map(|rule| {
        let word = match rule.rule.as_ref()? {
            Kind::Function(name) => return Some(without_parameters(name).to_owned()),
            Kind::Glob(glob) => glob.trim_matches('*'),
            Kind::Regex(regex) => regex.trim_start_matches('^').trim_end_matches('$'),
            Kind::Module(_)
            | Kind::Source(_)
            | Kind::Id(_)
            | Kind::AlwaysInstrumented(_)
            | Kind::SmallerThan(_)
            | Kind::All(_) => return None,
        };
        (!word.is_empty() && word.chars().all(plain)).then(|| word.to_owned())
    });
    words.collect()
}

/// The rank of a name; `None` if it is not similar. `wanted` is in lower case.
fn rank<'a>(wanted: &str, name: &'a str) -> Option<Rank<'a>> {
    if name.is_empty() || name.len() > LONGEST_NAME {
        return None;
    }
    let lower = name.to_lowercase();
    let (wanted_last, last) = (last_part(wanted), last_part(&lower));
    let of_last = edits(wanted_last, last);
    let is_inside = wanted.len() >= SHORTEST_PART && lower.contains(wanted);
    let whole = [
        edits(wanted, &lower),
        of_last.filter(|_| wanted_last == wanted),
        is_inside.then_some(1),
    ];
    let (likeness, edits) = match (whole.into_iter().flatten().min(), of_last) {
        (Some(edits), _) => (Likeness::Whole, edits),
        (None, Some(edits)) => (Likeness::LastPart, edits),
        (None, None) => return None,
    };
    Some(Rank {
        likeness,
        edits,
        length: name.len(),
        name,
    })
}

/// The number of edits between two texts; `None` if they are not similar.
fn edits(wanted: &str, name: &str) -> Option<usize> {
    let length = wanted.chars().count();
    let most = ((length + 2) / 4).min(MOST_EDITS);
    // Texts of very different lengths need as many edits, so they are not compared.
    if name.chars().count().abs_diff(length) > most {
        return None;
    }
    let edits = strsim::osa_distance(wanted, name);
    (edits <= most).then_some(edits)
}

/// The part of a name behind its namespaces.
fn last_part(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use xrayd_proto::v1::Rule;

    use super::*;

    const NAMES: [&str; 8] = [
        "svc::handle",
        "svc::handle_all",
        "svc::handler",
        "other::handle",
        "main",
        "svc::Parser::parse",
        "svc::handle",
        "x",
    ];

    #[test]
    fn names_with_few_edits_come_first_then_longer_ones() {
        for (wanted, expected) in [
            (
                "svc::handel",
                &["svc::handle", "svc::handler", "other::handle"][..],
            ),
            ("handle", &["svc::handle", "other::handle", "svc::handler"]),
            ("SVC::HANDLE", &["svc::handle", "svc::handler"]),
            ("server::parse", &["svc::Parser::parse"]),
            ("handle_a", &["svc::handle_all", "svc::handle"]),
            ("mian", &["main"]),
            ("parser", &["svc::Parser::parse"]),
            ("nothing", &[]),
            ("y", &[]),
            ("", &[]),
        ] {
            let found = nearest(wanted, NAMES);
            assert!(found.starts_with(expected), "{wanted}: {found:?}");
            assert!(
                expected.is_empty() == found.is_empty(),
                "{wanted}: {found:?}"
            );
        }
    }

    #[test]
    fn long_names_and_names_beyond_the_limit_are_not_compared() {
        let long = "a".repeat(LONGEST_NAME + 1);
        assert!(nearest(&long, [long.as_str()]).is_empty());
        assert!(nearest("aaaa", [long.as_str()]).is_empty());
        let many = std::iter::repeat_n("x", MOST_NAMES);
        assert!(nearest("main", many.chain(["main"])).is_empty());
    }

    #[test]
    fn a_hint_is_escaped_and_has_three_names_at_most() {
        let wanted = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        for (words, names, expected) in [
            (&["mian"][..], &["main"][..], " (did you mean main?)"),
            (
                &["handel"],
                &["handle", "hander"],
                " (did you mean hander or handle?)",
            ),
            (
                &["abcd1", "wxyz1"],
                &["abcd", "abcd2", "wxyz", "wxyz2"],
                " (did you mean abcd, abcd2 or wxyz?)",
            ),
            (&["mian"], &["mai\u{1b}n"], ""),
            (
                &["mai\u{7}n"],
                &["mai\u{1b}n"],
                " (did you mean mai\\u{1b}n?)",
            ),
            (&["f"], &[], ""),
        ] {
            let words: Vec<String> = wanted(words);
            let found = hint(&words, names.iter().copied());
            assert_eq!(found, expected, "{words:?}");
        }
    }

    #[test]
    fn words_are_the_names_in_a_selection() {
        let rules = [
            Kind::Function("svc::handel(int)".to_owned()),
            Kind::Glob("svc::h*".to_owned()),
            Kind::Glob("a*b".to_owned()),
            Kind::Glob("*".to_owned()),
            Kind::Regex("^main$".to_owned()),
            Kind::Regex("a|b".to_owned()),
            Kind::Module("libfoo.so".to_owned()),
            Kind::Id(7),
        ];
        let selection = Selection {
            include: rules
                .into_iter()
                .map(|rule| Rule { rule: Some(rule) })
                .collect(),
            exclude: Vec::new(),
        };
        assert_eq!(words(&selection), ["svc::handel", "svc::h", "main"]);
    }
}

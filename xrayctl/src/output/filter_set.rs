//! `xrayctl filter`.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::{Filter, FilterReport, Refusal};

use super::{Look, refused, units};

/// The results of setting or asking for the filter.
#[derive(Debug, Serialize)]
pub(crate) struct FilterSet {
    /// `None` if the filter was only asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<Filter>,
    processes: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    pid: u32,
    /// The filter before; `None` if it could not be changed.
    before: Option<Filter>,
    refusal: Option<Refusal>,
}

// === impl FilterSet ===

impl FilterSet {
    pub(crate) fn new(filter: Option<Filter>, reports: Vec<FilterReport>) -> Self {
        let processes = reports.into_iter().map(|report| {
            let FilterReport {
                pid,
                before,
                refusal,
            } = report;
            Row {
                pid,
                before,
                refusal,
            }
        });
        Self {
            filter,
            processes: processes.collect(),
        }
    }

    /// The first process that refused.
    pub(crate) fn refusal(&self) -> Option<(u32, &Refusal)> {
        let mut rows = self.processes.iter();
        rows.find_map(|row| Some((row.pid, row.refusal.as_ref()?)))
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        for row in &self.processes {
            let pid = row.pid;
            let before = row.before.as_ref().map(describe).unwrap_or_default();
            match (&row.refusal, self.filter.as_ref().map(describe)) {
                (Some(refusal), _) => refused::render(refusal, pid, out, look)?,
                (None, None) => writeln!(out, "{pid}: {before}")?,
                (None, Some(now)) if now == before => writeln!(out, "{pid}: {now}, as before")?,
                (None, Some(now)) => writeln!(out, "{pid}: {now}; before: {before}")?,
            }
        }
        Ok(())
    }
}

/// The words for no filter.
pub(crate) const ALL: &str = "everything";

/// The filter in words.
pub(crate) fn describe(filter: &Filter) -> String {
    let Filter {
        min_duration_ns,
        max_depth,
        one_in,
        inside,
        threads,
        modules,
        from_wall_ns,
        until_wall_ns,
    } = filter;
    let mut parts = Vec::new();
    if *min_duration_ns > 0 {
        parts.push(format!(
            "calls of at least {}",
            units::time(*min_duration_ns)
        ));
    }
    if *max_depth > 0 {
        parts.push(format!("to depth {max_depth}"));
    }
    if *one_in > 1 {
        parts.push(format!("one call tree in {one_in}"));
    }
    for (what, names) in [
        ("inside", inside),
        ("threads", threads),
        ("modules", modules),
    ] {
        if !names.is_empty() {
            parts.push(format!("{what} {}", names.join(" ")));
        }
    }
    if (*from_wall_ns, *until_wall_ns) != (0, 0) {
        parts.push("in a time window".to_owned());
    }
    match parts.is_empty() {
        true => ALL.to_owned(),
        false => parts.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_told_in_words() {
        let filter = Filter {
            min_duration_ns: 100_000,
            max_depth: 3,
            one_in: 10,
            inside: vec!["ns::*".to_owned(), "main".to_owned()],
            threads: vec!["7".to_owned()],
            modules: vec!["libfoo".to_owned()],
            from_wall_ns: 1,
            until_wall_ns: 2,
        };
        assert_eq!(
            describe(&filter),
            "calls of at least 100.0 µs, to depth 3, one call tree in 10, inside ns::* main, threads 7, modules libfoo, in a time window"
        );
        let set = FilterSet::new(
            Some(Filter::default()),
            vec![FilterReport {
                pid: 7,
                before: Some(filter),
                refusal: None,
            }],
        );
        let mut out = Vec::new();
        set.render(&mut out, Look::PLAIN).unwrap();
        assert!(
            String::from_utf8(out)
                .unwrap()
                .starts_with("7: everything; before: calls of at least 100")
        );
    }
}

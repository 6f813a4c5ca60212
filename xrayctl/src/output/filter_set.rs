//! `xrayctl filter`.

use std::io;

use xrayd_proto::v1::{Filter, Settings};

use super::per_process::{NoEffect, Setting};
use super::{Look, units};

impl Setting for Filter {
    const KEY: &'static str = "filter";
    type Effect = NoEffect;

    fn of(settings: Settings) -> Option<Self> {
        settings.filter
    }

    fn into_settings(self) -> Settings {
        Settings {
            filter: Some(self),
            ..Settings::default()
        }
    }

    fn describe(&self) -> String {
        describe(self)
    }

    fn render_effect(_: u32, effect: &NoEffect, _: &mut dyn io::Write, _: Look) -> io::Result<()> {
        match *effect {}
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
    use xrayd_proto::v1::SettingsReport;

    use super::{super::per_process::PerProcess, *};

    #[test]
    fn recorded_calls_are_described_in_words() {
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
        let report = SettingsReport {
            pid: 7,
            before: Some(filter.into_settings()),
            refusal: None,
        };
        let set = PerProcess::new(Some(Filter::default()), vec![report]);
        let mut out = Vec::new();
        set.render(&mut out, Look::PLAIN).unwrap();
        assert!(
            String::from_utf8(out)
                .unwrap()
                .starts_with("7: everything; before: calls of at least 100")
        );
    }
}

//! A setting of processes, before and after a command: `xrayctl mode`, `budget` and `filter`.

use std::{fmt, io};

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use xrayd_proto::v1::{Refusal, Settings, SettingsReport};

use super::{Look, refused};

/// A setting that each process has.
pub(crate) trait Setting: Serialize + Sized {
    /// Its key in JSON, and its name.
    const KEY: &'static str;
    /// Its effect in a process, shown if the setting is only asked for.
    type Effect: fmt::Debug + Serialize;

    /// The setting of a process. `None` if this version does not know it.
    fn of(settings: Settings) -> Option<Self>;

    /// A change of this setting alone.
    fn into_settings(self) -> Settings;

    /// The setting in words.
    fn describe(&self) -> String;

    /// Writes the effect in a process.
    fn render_effect(
        pid: u32,
        effect: &Self::Effect,
        out: &mut dyn io::Write,
        look: Look,
    ) -> io::Result<()>;
}

/// The results of setting or asking for a setting, process by process.
#[derive(Debug)]
pub(crate) struct PerProcess<T: Setting> {
    /// The new setting; `None` if the setting was only asked for.
    now: Option<T>,
    rows: Vec<Row<T>>,
}

/// The result in a process.
#[derive(Debug, Serialize)]
struct Row<T: Setting> {
    pid: u32,
    /// The setting before; `None` if it could not be changed.
    before: Option<T>,
    refusal: Option<Refusal>,
    /// Present if the setting was only asked for, and has effects to show.
    #[serde(rename = "status", skip_serializing_if = "Option::is_none")]
    effect: Option<T::Effect>,
}

/// The effect of a setting without effects to show.
#[derive(Debug, Serialize)]
pub(crate) enum NoEffect {}

// === impl PerProcess ===

impl<T: Setting> PerProcess<T> {
    pub(crate) fn new(now: Option<T>, reports: Vec<SettingsReport>) -> Self {
        Self::with_effects(now, reports, |_| None)
    }

    /// As [`Self::new`], with the effect of the setting in each process.
    pub(crate) fn with_effects(
        now: Option<T>,
        reports: Vec<SettingsReport>,
        mut effect: impl FnMut(u32) -> Option<T::Effect>,
    ) -> Self {
        let rows = reports.into_iter().map(|report| {
            let SettingsReport {
                pid,
                before,
                refusal,
            } = report;
            Row {
                pid,
                before: before.and_then(T::of),
                refusal,
                effect: effect(pid),
            }
        });
        let rows = rows.collect();
        Self { now, rows }
    }

    /// The first process that refused.
    pub(crate) fn refusal(&self) -> Option<(u32, &Refusal)> {
        let mut rows = self.rows.iter();
        rows.find_map(|row| Some((row.pid, row.refusal.as_ref()?)))
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let now = self.now.as_ref().map(Setting::describe);
        for row in &self.rows {
            let pid = row.pid;
            if let Some(refusal) = &row.refusal {
                refused::render(refusal, pid, out, look)?;
                continue;
            }
            match (&now, row.before.as_ref().map(Setting::describe)) {
                (Some(now), None) => writeln!(out, "{pid}: {now}")?,
                (Some(now), Some(before)) if *now == before => {
                    writeln!(out, "{pid}: {now}, as before")?;
                }
                (Some(now), Some(before)) => writeln!(out, "{pid}: {now}; before: {before}")?,
                (None, before) => writeln!(out, "{pid}: {}", before.unwrap_or_default())?,
            }
            if let (None, Some(effect)) = (&now, &row.effect) {
                T::render_effect(pid, effect, out, look)?;
            }
        }
        Ok(())
    }
}

impl<T: Setting> Serialize for PerProcess<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(now) = &self.now {
            map.serialize_entry(T::KEY, now)?;
        }
        map.serialize_entry("processes", &self.rows)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize)]
    struct Level(u32);

    impl Setting for Level {
        const KEY: &'static str = "level";
        type Effect = u32;

        fn of(settings: Settings) -> Option<Self> {
            u32::try_from(settings.mode).ok().map(Self)
        }

        fn into_settings(self) -> Settings {
            unreachable!("nothing is sent")
        }

        fn describe(&self) -> String {
            format!("level {}", self.0)
        }

        fn render_effect(
            pid: u32,
            effect: &u32,
            out: &mut dyn io::Write,
            _: Look,
        ) -> io::Result<()> {
            writeln!(out, "{pid}: effect {effect}")
        }
    }

    fn report(pid: u32, before: i32) -> SettingsReport {
        let before = Settings {
            mode: before,
            ..Settings::default()
        };
        SettingsReport {
            pid,
            before: Some(before),
            refusal: None,
        }
    }

    #[track_caller]
    fn check(set: &PerProcess<Level>, text: &str, json: &str) {
        let mut out = Vec::new();
        set.render(&mut out, Look::PLAIN).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), text);
        assert_eq!(serde_json::to_string(set).unwrap(), json);
    }

    #[test]
    fn a_row_is_changed_as_before_or_refused() {
        let refusal = Refusal {
            reason: "busy".to_owned(),
            message: "being detached".to_owned(),
        };
        let refused = SettingsReport {
            before: None,
            refusal: Some(refusal),
            ..report(9, 0)
        };
        let set = PerProcess::new(Some(Level(3)), vec![report(7, 1), report(8, 3), refused]);
        assert_eq!(set.refusal().map(|(pid, _)| pid), Some(9));
        check(
            &set,
            "7: level 3; before: level 1\n8: level 3, as before\n9: refused: being detached [busy]\n",
            r#"{"level":3,"processes":[{"pid":7,"before":1,"refusal":null},{"pid":8,"before":3,"refusal":null},{"pid":9,"before":null,"refusal":{"reason":"busy","message":"being detached"}}]}"#,
        );
    }

    #[test]
    fn a_setting_that_is_asked_for_is_shown_with_its_effect() {
        let effect = |pid| (pid == 7).then_some(5);
        let set: PerProcess<Level> =
            PerProcess::with_effects(None, vec![report(7, 1), report(8, 2)], effect);
        assert!(set.refusal().is_none());
        check(
            &set,
            "7: level 1\n7: effect 5\n8: level 2\n",
            r#"{"processes":[{"pid":7,"before":1,"refusal":null,"status":5},{"pid":8,"before":2,"refusal":null}]}"#,
        );
    }
}

//! `xrayctl mode`.

use std::io;

use serde::Serialize;
use xrayd::types::Mode;
use xrayd_proto::v1::{self, ModeReport};

use super::Look;
use super::per_process::{NoEffect, PerProcess, Row, Setting};

/// The name of a mode.
#[derive(Debug, Serialize)]
pub(crate) struct ModeName(&'static str);

/// The results of setting the mode.
pub(crate) fn set(mode: Mode, reports: Vec<ModeReport>) -> PerProcess<ModeName> {
    let rows = reports.into_iter().map(|report| {
        let before = match report.before() {
            v1::Mode::Unspecified => None,
            v1::Mode::Flight => Some(Mode::Flight),
            v1::Mode::Stream => Some(Mode::Stream),
            v1::Mode::Profile => Some(Mode::Profile),
            v1::Mode::Count => Some(Mode::Count),
        };
        let ModeReport { pid, refusal, .. } = report;
        Row {
            pid,
            before: before.map(|mode| ModeName(mode.name())),
            refusal,
            effect: None,
        }
    });
    PerProcess::new(Some(ModeName(mode.name())), rows)
}

// === impl ModeName ===

impl Setting for ModeName {
    const KEY: &'static str = "mode";
    type Effect = NoEffect;

    fn describe(&self) -> String {
        self.0.to_owned()
    }

    fn render_effect(_: u32, effect: &NoEffect, _: &mut dyn io::Write, _: Look) -> io::Result<()> {
        match *effect {}
    }
}

#[cfg(test)]
mod tests {
    use xrayd_proto::v1::Refusal;

    use super::{super::golden, *};

    #[test]
    fn the_result_of_each_process_is_reported() {
        let report = |pid, before: v1::Mode| ModeReport {
            pid,
            before: before.into(),
            refusal: None,
        };
        let refused = ModeReport {
            pid: 9,
            before: 0,
            refusal: Some(Refusal {
                reason: "target-exited".into(),
                message: "process 9 has ended".into(),
            }),
        };
        let reports = vec![
            report(7, v1::Mode::Flight),
            report(8, v1::Mode::Stream),
            refused,
        ];
        let set = set(Mode::Stream, reports);
        golden::check("mode.txt", |out| set.render(out, Look::PLAIN));
        golden::check_json("mode.json", &set);
    }
}

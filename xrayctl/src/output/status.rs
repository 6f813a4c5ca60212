//! `xrayctl status`.

use std::io;

use serde::Serialize;
use xray_trace::model::GapCause;
use xrayd_proto::{
    Named as _,
    v1::{
        self, ClockFaultKind, Detection, Mode, ModuleStatus, ProcessStatus, SessionState,
        ThreadLoss,
    },
};

use super::text::printable;
use super::trace_summary::clock_lines;
use super::unrecorded::{cause_in_words, gap_line};
use super::{Cell, Column, Look, Table, Tone, budget_set, filter_set, group_status, units};

/// State and counters of the attached processes.
#[derive(Debug, Serialize)]
pub(crate) struct Statuses {
    pub(crate) processes: Vec<ProcessStatus>,
    /// The text shows this besides the table of processes. JSON has everything.
    #[serde(skip)]
    pub(crate) detail: Detail,
}

/// The detail of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Only processes.
    Processes,
    /// Processes and their modules.
    Modules,
}

// === impl Statuses ===

impl Statuses {
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        if self.processes.is_empty() {
            return writeln!(out, "no process is attached");
        }
        let mut table = Table::new([
            Column::right("PID"),
            Column::elastic("COMMAND"),
            Column::left("STATE").minor(2),
            Column::left("MODE").minor(9),
            Column::right("ON"),
            Column::right("OF").minor(3),
            Column::right("THREADS").minor(5),
            Column::right("EVENTS").minor(1),
            Column::right("EVENTS/S").minor(4),
            Column::right("LOST"),
            Column::right("RING").minor(6),
            Column::right("COPIED").minor(7),
            Column::right("RETAINED").minor(8),
        ]);
        self.processes.iter().for_each(|row| table.push(cells(row)));
        table.render(out, look)?;
        self.render_losses(out, look)?;
        self.render_families(out, look)?;
        for row in self.processes.iter().filter(|row| !row.failure.is_empty()) {
            let failure = printable(&row.failure);
            writeln!(
                out,
                "process {}: its session has failed ({failure}); detach, then attach again",
                row.pid
            )?;
        }
        for row in self.processes.iter() {
            if row.functions_with_values > 0 {
                let functions = units::counted(row.functions_with_values.into(), "function");
                writeln!(out, "{}: values of {functions} recorded", row.pid)?;
            }
            if !row.rings_refused.is_empty() {
                let line = format!(
                    "{}: threads without a ring lose all their events: {}",
                    row.pid,
                    printable(&row.rings_refused)
                );
                writeln!(out, "{}", look.paint(Tone::Warning, &line))?;
            }
            if row.triggers > 0 {
                let triggers = units::counted(row.triggers.into(), "trigger");
                writeln!(out, "{}: {triggers} armed", row.pid)?;
            }
            let faults = row.clock_faults.iter();
            let faults =
                faults.map(|fault| (fault.from_ns, fault.kind() == ClockFaultKind::Suspended));
            for line in clock_lines(faults) {
                writeln!(out, "{}: {}", row.pid, look.paint(Tone::Bad, &line))?;
            }
            for gap in &row.gaps {
                let line = gap_line(gap.from_ns, gap.to_ns, cause_of(gap.cause()));
                writeln!(out, "{}: {}", row.pid, look.paint(Tone::Warning, &line))?;
            }
            for line in row.budget.iter().flat_map(budget_set::came_of_it) {
                writeln!(out, "{}: {line}", row.pid)?;
            }
            let filter = row.filter.as_ref().map(filter_set::describe);
            let leaves_out = filter
                .as_deref()
                .is_some_and(|what| what != filter_set::ALL);
            if leaves_out || row.left_out > 0 || row.filtered > 0 {
                let left_out = units::count(row.left_out);
                writeln!(out, "{}: filtered in the program: {left_out}", row.pid)?;
                if row.filtered > 0 {
                    let filtered = units::count(row.filtered);
                    writeln!(out, "{}: filtered in the daemon: {filtered}", row.pid)?;
                }
            }
        }
        match self.detail {
            Detail::Processes => Ok(()),
            Detail::Modules => self.render_modules(out, look),
        }
    }

    /// Writes the threads that lost events, if there are any.
    fn render_losses(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mut table = Table::new([
            Column::right("PID"),
            Column::right("TID"),
            Column::right("LOST"),
            Column::elastic("THREAD"),
        ]);
        let losers = self.processes.iter().filter(|row| !row.losses.is_empty());
        let mut any = false;
        for row in losers {
            any = true;
            let mut push = |tid: u32, lost: u64, name: &str| {
                let tid = if tid == 0 {
                    String::new()
                } else {
                    tid.to_string()
                };
                table.push([
                    row.pid.to_string().into(),
                    tid.into(),
                    Cell::toned(units::count(lost), Tone::Bad),
                    name.into(),
                ]);
            };
            for ThreadLoss { tid, name, lost } in &row.losses {
                push(*tid, *lost, name);
            }
            if row.lost_by_others > 0 {
                push(0, row.lost_by_others, "(others)");
            }
        }
        if any {
            writeln!(out)?;
            table.render(out, look)?;
        }
        Ok(())
    }

    /// Writes the origins of followed processes, if there are any.
    fn render_families(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mut table = Table::new([
            Column::right("PID"),
            Column::right("ROOT"),
            Column::right("PARENT"),
            Column::left("BY"),
            Column::right("RAN BEFORE"),
        ]);
        let mut any = false;
        for row in &self.processes {
            if let Some(kinship) = &row.kinship {
                any = true;
                table.push([
                    row.pid.to_string().into(),
                    kinship.root.to_string().into(),
                    kinship.parent.to_string().into(),
                    if kinship.by_exec { "exec" } else { "fork" }.into(),
                    units::time(kinship.within_ns).into(),
                ]);
            }
        }
        if any {
            writeln!(out)?;
            table.render(out, look)?;
        }
        let groups = self.processes.iter();
        for (root, group) in groups.filter_map(|row| Some((row.pid, row.group.as_ref()?))) {
            writeln!(out, "{}", group_status::counts(root, group))?;
            if let Some(how) = group_status::detection(group) {
                writeln!(out, "  {how}")?;
            }
            for line in group_status::not_whole(group) {
                writeln!(out, "  {}", look.paint(Tone::Warning, &line))?;
            }
        }
        Ok(())
    }

    fn render_modules(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mut table = Table::new([
            Column::right("PID"),
            Column::right("ON"),
            Column::right("OF"),
            Column::right("COPIED"),
            Column::right("ON AFTER").minor(1),
            Column::left("BUILD ID").minor(2),
            Column::elastic("MODULE"),
        ]);
        for process in &self.processes {
            for module in &process.modules {
                table.push(module_cells(process.pid, module));
            }
        }
        writeln!(out)?;
        table.render(out, look)?;
        for module in self.processes.iter().flat_map(|process| &process.modules) {
            if let Some(refusal) = &module.refusal {
                let (path, message) = (printable(&module.path), printable(&refusal.message));
                writeln!(out, "{path} is not traced: {message} [{}]", refusal.reason)?;
            }
        }
        for process in &self.processes {
            let how = match process.detection() {
                Detection::Perf => "at once, by perf events".to_owned(),
                Detection::Polling => format!(
                    "every few milliseconds, from its memory map: {}",
                    process.detection_why
                ),
                _ => continue,
            };
            let how = printable(&how);
            writeln!(
                out,
                "process {}: libraries that it loads are detected {how}",
                process.pid
            )?;
        }
        Ok(())
    }
}

/// The cause of a gap, for people.
fn cause_of(cause: v1::GapCause) -> &'static str {
    cause_in_words(match cause {
        v1::GapCause::NoDaemon => GapCause::NoDaemon,
        v1::GapCause::UnreadRings => GapCause::UnreadRings,
        v1::GapCause::DamagedEvents => GapCause::DamagedEvents,
        v1::GapCause::Unspecified => GapCause::Unknown,
    })
}

fn module_cells(pid: u32, row: &ModuleStatus) -> [Cell; 7] {
    let armed = match row.armed_within_ns {
        0 => String::new(),
        nanoseconds if row.armed_measured => units::time(nanoseconds),
        nanoseconds => format!("≤ {}", units::time(nanoseconds)),
    };
    [
        pid.to_string().into(),
        row.functions_on.to_string().into(),
        row.functions.to_string().into(),
        units::bytes(row.copied_bytes).into(),
        armed.into(),
        row.build_id.as_str().into(),
        row.path.as_str().into(),
    ]
}

fn cells(row: &ProcessStatus) -> [Cell; 13] {
    let state = if row.state() == SessionState::Tracing {
        Tone::Good
    } else {
        Tone::Warning
    };
    let lost = if row.lost == 0 {
        Tone::Plain
    } else {
        Tone::Bad
    };
    let permille = row.ring_use_permille;
    // The number of events that are still in the rings is an estimate.
    let about = if row.mode() == Mode::Flight { "~" } else { "" };
    let events = format!("{about}{}", units::count(row.events));
    let what = match row.executed {
        true => "exec".to_owned(),
        false => SessionState::name_of(row.state),
    };
    [
        row.pid.to_string().into(),
        row.command.as_str().into(),
        Cell::toned(what, state),
        Mode::name_of(row.mode).into(),
        row.functions_on.to_string().into(),
        row.functions.to_string().into(),
        row.threads.to_string().into(),
        events.into(),
        format!("{:.0}", row.events_per_second).into(),
        Cell::toned(units::count(row.lost), lost),
        format!("{}.{}%", permille / 10, permille % 10).into(),
        units::bytes(row.copied_bytes).into(),
        units::bytes(row.retained_bytes).into(),
    ]
}

#[cfg(test)]
mod tests {
    use xrayd_proto::v1::{
        Budget, BudgetStatus, ClockFault, Filter, Kinship, Refusal, SuppressedFunction,
    };

    use super::super::golden;
    use super::*;

    #[test]
    fn rows_look_as_agreed() {
        let status = ProcessStatus {
            pid: 812,
            command: "./server".into(),
            mode: Mode::Stream.into(),
            state: SessionState::Tracing.into(),
            functions: 1204,
            functions_on: 17,
            functions_with_values: 3,
            threads: 4,
            events: 1_234_567,
            events_per_second: 45_678.4,
            lost: 3,
            ring_use_permille: 125,
            ring_bytes: 1 << 20,
            max_threads: 1024,
            rings_refused: String::new(),
            copied_bytes: 40 << 10,
            retained_bytes: 3 << 20,
            retained_events: 1_234_560,
            overwritten_events: 7,
            triggers: 1,
            filter: Some(Filter {
                min_duration_ns: 100_000,
                ..Filter::default()
            }),
            budget: Some(BudgetStatus {
                budget: Some(Budget {
                    max_overhead_ppm: 20_000,
                    ..Budget::default()
                }),
                overhead_ppm: Some(17_300),
                event_ns: 14.5,
                suppressed: 12,
                unrecorded_estimate: 4_711_000,
                top: vec![SuppressedFunction {
                    id: 3,
                    name: "get".into(),
                    suppressed: true,
                    unrecorded_estimate: 4_000_000,
                }],
                windows: 0,
            }),
            filtered: 3,
            left_out: 12_345,
            attached_wall_ns: 1_700_000_000_000_000_000,
            uid: 1000,
            failure: String::new(),
            kinship: None,
            group: None,
            executed: false,
            modules: vec![
                ModuleStatus {
                    path: "/srv/bin/server".into(),
                    build_id: "0123456789abcdef".into(),
                    functions: 1200,
                    functions_on: 15,
                    copied_bytes: 36 << 10,
                    ..ModuleStatus::default()
                },
                ModuleStatus {
                    path: "/srv/lib/plugin.so".into(),
                    functions: 4,
                    functions_on: 2,
                    copied_bytes: 4 << 10,
                    armed_within_ns: 4_312_000,
                    ..ModuleStatus::default()
                },
                ModuleStatus {
                    path: "/srv/lib/heard.so".into(),
                    functions: 2,
                    functions_on: 2,
                    copied_bytes: 4 << 10,
                    armed_within_ns: 812_000,
                    armed_measured: true,
                    ..ModuleStatus::default()
                },
                ModuleStatus {
                    path: "/srv/lib/far.so".into(),
                    refusal: Some(Refusal {
                        reason: "no-memory".into(),
                        message: "no 4096 free bytes within 2 GiB".into(),
                    }),
                    ..ModuleStatus::default()
                },
            ],
            detection: Detection::Polling.into(),
            detection_why: "no perf events: Permission denied".into(),
            losses: Vec::new(),
            lost_by_others: 0,
            clock_faults: Vec::new(),
            gaps: Vec::new(),
        };
        let fault = |second: u64, kind: ClockFaultKind| ClockFault {
            from_ns: second * 1_000_000_000,
            to_ns: (second + 1) * 1_000_000_000,
            kind: kind.into(),
        };
        let faulty = ProcessStatus {
            clock_faults: vec![
                fault(3600, ClockFaultKind::Backwards),
                fault(4000, ClockFaultKind::Suspended),
                fault(5000, ClockFaultKind::Rate),
            ],
            ..status.clone()
        };
        let loss = |tid, name: &str, lost| ThreadLoss {
            tid,
            name: name.into(),
            lost,
        };
        let losing = ProcessStatus {
            lost: 12_345,
            losses: vec![
                loss(815, "worker-\u{1b}[2J", 12_000),
                loss(0, "(threads without a ring)", 300),
            ],
            lost_by_others: 45,
            rings_refused: "97 rings would take 8190 KiB; apart from the rings, control group /sys/fs/cgroup/a has room for 13000 KiB, and rings may take half of that".into(),
            ..status.clone()
        };
        let failed = ProcessStatus {
            state: SessionState::Failed.into(),
            failure: "index out of\nbounds".into(),
            ..status.clone()
        };
        let root = ProcessStatus {
            group: Some(group_status::tests::sample()),
            modules: Vec::new(),
            ..status.clone()
        };
        let followed = ProcessStatus {
            pid: 915,
            kinship: Some(Kinship {
                root: 812,
                parent: 812,
                by_exec: false,
                within_ns: 4_100_000,
            }),
            modules: Vec::new(),
            ..status.clone()
        };
        let became = ProcessStatus {
            pid: 916,
            kinship: Some(Kinship {
                root: 812,
                parent: 915,
                by_exec: true,
                within_ns: 12_345_000,
            }),
            state: SessionState::Exited.into(),
            executed: true,
            ..followed.clone()
        };
        let group = Statuses {
            processes: vec![root, followed, became],
            detail: Detail::Processes,
        };
        golden::check("status-group.txt", |out| group.render(out, Look::PLAIN));
        golden::check_json("status-group.json", &group);
        let statuses = Statuses {
            processes: vec![status],
            detail: Detail::Processes,
        };
        golden::check("status.txt", |out| statuses.render(out, Look::PLAIN));
        golden::check_narrow("status-narrow.txt", |out, look| statuses.render(out, look));
        golden::check_json("status.json", &statuses);
        let modules = Statuses {
            detail: Detail::Modules,
            ..statuses
        };
        golden::check("status-modules.txt", |out| modules.render(out, Look::PLAIN));
        let faulty = Statuses {
            processes: vec![faulty],
            detail: Detail::Processes,
        };
        golden::check("status-clock.txt", |out| faulty.render(out, Look::PLAIN));
        golden::check_json("status-clock.json", &faulty);
        let failed = Statuses {
            processes: vec![failed],
            detail: Detail::Processes,
        };
        golden::check("status-failed.txt", |out| failed.render(out, Look::PLAIN));
        let losing = Statuses {
            processes: vec![losing],
            detail: Detail::Processes,
        };
        golden::check("status-losses.txt", |out| losing.render(out, Look::PLAIN));
        golden::check_json("status-losses.json", &losing);
        let none = Statuses {
            processes: Vec::new(),
            detail: Detail::Modules,
        };
        golden::check("status-none.txt", |out| none.render(out, Look::PLAIN));
    }
}

//! The policies of the daemon, for `xrayctl policy`.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::{PolicyMistake, PolicyRefusal, PolicyStatus, PolicyTrigger};

use super::checked_policy::Mistake;
use super::console::Tone;
use super::mode_set::name_of;
use super::table::{Cell, Column, Table};
use super::{Look, moment, text, units};

/// Policies, as a table or each by itself.
#[derive(Debug, Serialize)]
pub(crate) struct Policies {
    policies: Vec<Policy>,
}

#[derive(Debug, Serialize)]
struct Policy {
    /// Empty for a file that has never been a policy.
    name: String,
    state: State,
    /// Absent if a client has applied the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// In seconds since the Unix epoch. Absent if the policy does not end.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    mistakes: Vec<Mistake>,
    matched: u32,
    /// The processes in which it has functions on.
    traced: Vec<u32>,
    too_young: u32,
    beyond_max_processes: u32,
    refused: Vec<Refused>,
    events: u64,
    lost: u64,
    mode: &'static str,
    /// Absent if no files are written for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Files>,
    triggers: Vec<Trigger>,
}

/// A trigger, of whose moments a recorder writes snapshots.
#[derive(Debug, Serialize)]
struct Trigger {
    when: Vec<String>,
    /// Absent if a snapshot reaches back as far as it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    before_ns: Option<u64>,
    after_ns: u64,
    limit: u32,
    limit_period_ns: u64,
}

/// The files that a recorder writes for a policy.
#[derive(Debug, Serialize)]
struct Files {
    every_ns: u64,
    file_bytes: u64,
    keep_bytes: u64,
    /// Absent if files do not go for their age.
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    InForce,
    Expired,
    /// The file has mistakes, and has never been a policy.
    Broken,
}

#[derive(Debug, Serialize)]
struct Refused {
    pid: u32,
    reason: String,
    message: String,
}

// === impl Policies ===

impl Policies {
    pub(crate) fn new(policies: Vec<PolicyStatus>) -> Self {
        Self {
            policies: policies.into_iter().map(Policy::from).collect(),
        }
    }

    /// Writes a table with a row for each policy.
    pub(crate) fn render_table(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        if self.policies.is_empty() {
            return writeln!(out, "there are no policies");
        }
        let mut table = Table::new([
            Column::left("POLICY"),
            Column::left("STATE"),
            Column::right("MATCHED"),
            Column::right("TRACED"),
            Column::right("REFUSED").minor(1),
            Column::right("EVENTS").minor(2),
            Column::right("LOST").minor(3),
            Column::left("EXPIRES").minor(4),
            Column::elastic("FILE"),
        ]);
        for policy in &self.policies {
            let number = |number: usize| units::count(number as u64).into();
            table.push([
                policy.shown_name().into(),
                policy.state_cell(),
                number(policy.matched as usize),
                number(policy.traced.len()),
                number(policy.refused.len()),
                units::count(policy.events).into(),
                units::count(policy.lost).into(),
                policy.end().into(),
                policy.file.as_deref().unwrap_or("(applied)").into(),
            ]);
        }
        table.render(out, look)
    }

    /// Writes each policy by itself, with what is wrong.
    pub(crate) fn render_each(&self, out: &mut dyn io::Write, _: Look) -> io::Result<()> {
        if self.policies.is_empty() {
            writeln!(out, "there are no policies")?;
        }
        for (number, policy) in self.policies.iter().enumerate() {
            if number > 0 {
                writeln!(out)?;
            }
            policy.render(out)?;
        }
        Ok(())
    }
}

// === impl Policy ===

impl From<PolicyStatus> for Policy {
    fn from(status: PolicyStatus) -> Self {
        let mode = name_of(status.mode());
        let PolicyStatus {
            name,
            text: _,
            path,
            has_expired,
            expires_s,
            mistakes,
            matched,
            traced,
            too_young,
            beyond,
            refused,
            events,
            lost,
            mode: _,
            output,
            triggers,
        } = status;
        let output = output.map(|output| Files {
            every_ns: output.every_ns,
            file_bytes: output.file_bytes,
            keep_bytes: output.keep_bytes,
            keep_ns: (output.keep_ns > 0).then_some(output.keep_ns),
        });
        let state = match (name.is_empty(), has_expired) {
            (true, _) => State::Broken,
            (false, true) => State::Expired,
            (false, false) => State::InForce,
        };
        let mistake = |mistake: PolicyMistake| Mistake::without_text(mistake);
        let refusal = |refusal| {
            let PolicyRefusal {
                pid,
                reason,
                message,
            } = refusal;
            Refused {
                pid,
                reason,
                message,
            }
        };
        Self {
            name,
            state,
            file: Some(path).filter(|path| !path.is_empty()),
            expires: Some(expires_s).filter(|expires| *expires > 0),
            mistakes: mistakes.into_iter().map(mistake).collect(),
            matched,
            traced: traced.into_iter().map(|process| process.pid).collect(),
            too_young,
            beyond_max_processes: beyond,
            refused: refused.into_iter().map(refusal).collect(),
            events,
            lost,
            mode,
            output,
            triggers: triggers.into_iter().map(Trigger::from).collect(),
        }
    }
}

impl From<PolicyTrigger> for Trigger {
    fn from(trigger: PolicyTrigger) -> Self {
        let PolicyTrigger {
            when,
            before_ns,
            after_ns,
            limit,
            limit_period_ns,
            event_formats: _,
        } = trigger;
        Self {
            when,
            before_ns: (before_ns > 0).then_some(before_ns),
            after_ns,
            limit,
            limit_period_ns,
        }
    }
}

impl Policy {
    fn shown_name(&self) -> &str {
        match self.name.is_empty() {
            true => "(none)",
            false => &self.name,
        }
    }

    fn state_cell(&self) -> Cell {
        match self.state {
            State::InForce if self.mistakes.is_empty() => Cell::toned("in force", Tone::Good),
            State::InForce => Cell::toned("old version", Tone::Warning),
            State::Expired => Cell::toned("expired", Tone::Dim),
            State::Broken => Cell::toned("broken", Tone::Bad),
        }
    }

    fn end(&self) -> String {
        match self.expires {
            Some(expires) => moment::shown(expires.saturating_mul(1_000_000_000)),
            None => "never".to_owned(),
        }
    }

    fn render(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let state = match self.state {
            State::InForce => "in force",
            State::Expired => "expired",
            State::Broken => "its file has mistakes, so it changes nothing",
        };
        writeln!(out, "{}: {state}", text::printable(self.shown_name()))?;
        let line = |out: &mut dyn io::Write, name: &str, value: &str| {
            writeln!(out, "  {name:<9} {}", text::printable(value))
        };
        line(out, "from", self.file.as_deref().unwrap_or("a client"))?;
        if self.state != State::Broken {
            line(out, "expires", &self.end())?;
            line(out, "processes", &self.processes())?;
            let events = units::count(self.events);
            let lost = units::count(self.lost);
            line(out, "events", &format!("{events}, {lost} lost"))?;
            for trigger in &self.triggers {
                let (when, times) = (trigger.when.join(" or "), trigger.limit);
                let period = units::exact_time(trigger.limit_period_ns);
                line(
                    out,
                    "trigger",
                    &format!("{when}, up to {times} times in {period}"),
                )?;
            }
        }
        if self.state == State::InForce && !self.mistakes.is_empty() {
            line(out, "file", "has mistakes: the version before is in force")?;
        }
        for mistake in &self.mistakes {
            line(out, "mistake", &mistake.to_string())?;
        }
        for Refused {
            pid,
            reason,
            message,
        } in &self.refused
        {
            line(out, "refused", &format!("{pid}: {reason}: {message}"))?;
        }
        Ok(())
    }

    fn processes(&self) -> String {
        let mut parts = vec![
            format!("{} matched", self.matched),
            format!("{} traced", self.traced.len()),
        ];
        let mut add = |number: u32, what: &str| {
            if number > 0 {
                parts.push(format!("{number} {what}"));
            }
        };
        add(
            u32::try_from(self.refused.len()).unwrap_or(u32::MAX),
            "refused",
        );
        add(self.too_young, "younger than min_age");
        add(self.beyond_max_processes, "beyond max_processes");
        parts.join(", ")
    }
}

//! Answers about traced processes and their groups.

use std::time::Duration;

use xray_trace::model::{Birth, ClockFault, ClockFaultKind, GapCause};
use xrayd_proto::v1;

use super::{
    nanoseconds,
    processes::shorten,
    refusal,
    settings::{budget_status, filter, mode},
};
use crate::{
    process::{Finding, Follow, GroupStatus, NotFollowed},
    types::{Detection, Kinship, ModuleStatus, Phase, Since, Status, ThreadLoss, TimedGap},
};

pub(crate) fn status(status: Status) -> v1::ProcessStatus {
    let Status {
        pid,
        uid,
        command,
        phase,
        kinship,
        executed,
        failure,
        mode,
        functions,
        functions_on,
        functions_with_values,
        threads,
        events,
        events_per_second,
        filtered,
        left_out,
        filter: what,
        budget: came,
        clock_faults,
        gaps,
        lost,
        losses,
        ring_use_permille,
        ring_bytes,
        max_threads,
        rings_refused,
        copied_bytes,
        retained_bytes,
        retained_events,
        overwritten_events,
        triggers,
        attached_wall_ns,
        modules,
        detection,
    } = status;
    let reported = losses
        .iter()
        .fold(0_u64, |reported, loss| reported.saturating_add(loss.lost));
    let (detection, detection_why) = match detection {
        Detection::Idle => (v1::Detection::Idle, String::new()),
        Detection::Perf => (v1::Detection::Perf, String::new()),
        Detection::Maps(why) => (v1::Detection::Polling, why),
    };
    v1::ProcessStatus {
        pid: pid.as_u32(),
        command: shorten(command),
        mode: self::mode(mode).into(),
        filter: Some(filter(what)),
        budget: Some(budget_status(came)),
        clock_faults: clock_faults.into_iter().map(clock_fault).collect(),
        gaps: gaps.into_iter().map(gap).collect(),
        filtered,
        left_out,
        state: session_state(phase).into(),
        functions,
        functions_on,
        functions_with_values,
        threads,
        events,
        events_per_second,
        lost,
        ring_use_permille,
        ring_bytes,
        max_threads,
        rings_refused: rings_refused.unwrap_or_default(),
        copied_bytes,
        retained_bytes,
        retained_events,
        overwritten_events,
        attached_wall_ns,
        uid,
        failure: failure.unwrap_or_default(),
        modules: modules.into_iter().map(module).collect(),
        detection: detection.into(),
        detection_why,
        kinship: kinship.map(self::kinship),
        group: None,
        executed,
        losses: losses.into_iter().map(thread_loss).collect(),
        lost_by_others: lost.saturating_sub(reported),
        triggers,
    }
}

fn gap(gap: TimedGap) -> v1::Gap {
    let TimedGap {
        from_ns,
        to_ns,
        cause,
    } = gap;
    let cause = match cause {
        GapCause::NoDaemon => v1::GapCause::NoDaemon,
        GapCause::UnreadRings => v1::GapCause::UnreadRings,
        GapCause::DamagedEvents => v1::GapCause::DamagedEvents,
        GapCause::Unknown => v1::GapCause::Unspecified,
    };
    v1::Gap {
        from_ns,
        to_ns,
        cause: cause.into(),
    }
}

fn clock_fault(fault: ClockFault) -> v1::ClockFault {
    let ClockFault {
        from_ns,
        to_ns,
        kind,
    } = fault;
    let kind = match kind {
        ClockFaultKind::Backwards => v1::ClockFaultKind::Backwards,
        ClockFaultKind::Rate => v1::ClockFaultKind::Rate,
        ClockFaultKind::Suspended => v1::ClockFaultKind::Suspended,
    };
    v1::ClockFault {
        from_ns,
        to_ns,
        kind: kind.into(),
    }
}

fn thread_loss(loss: ThreadLoss) -> v1::ThreadLoss {
    let ThreadLoss { tid, name, lost } = loss;
    v1::ThreadLoss { tid, name, lost }
}

pub(crate) fn kinship(kinship: Kinship) -> v1::Kinship {
    let Kinship {
        root,
        parent,
        by,
        within,
    } = kinship;
    v1::Kinship {
        root: root.as_u32(),
        parent: parent.as_u32(),
        by_exec: by == Birth::Exec,
        within_ns: nanoseconds(within),
    }
}

/// The rows of a group's processes. The row of the first process also has the state of the group,
/// if processes are followed.
pub(crate) fn group(
    status: GroupStatus,
    mut rows: Vec<v1::ProcessStatus>,
) -> Vec<v1::ProcessStatus> {
    let GroupStatus {
        root,
        uid,
        command,
        root_is_traced,
        follow,
        over,
        traced,
        followed,
        missed,
        dropped,
        untraced,
        not_followed,
        finding,
    } = status;
    let root = root.as_u32();
    if follow == Follow::None {
        return rows;
    }
    if !root_is_traced {
        rows.insert(
            0,
            v1::ProcessStatus {
                pid: root,
                uid,
                command: shorten(command),
                state: v1::SessionState::Untraced.into(),
                ..v1::ProcessStatus::default()
            },
        );
    }
    let follow = match follow {
        Follow::None => v1::Follow::Unspecified,
        Follow::Fork => v1::Follow::Fork,
        Follow::Exec => v1::Follow::Exec,
        Follow::All => v1::Follow::All,
    };
    let not_followed = not_followed.into_iter().map(|process| {
        let NotFollowed {
            pid,
            command,
            refusal: why,
        } = process;
        v1::NotFollowed {
            pid: pid.as_u32(),
            command: shorten(command),
            refusal: Some(refusal(why)),
        }
    });
    let (detection, detection_why) = match finding {
        None => (v1::Detection::Unspecified, String::new()),
        Some(Finding::Perf) => (v1::Detection::Perf, String::new()),
        Some(Finding::Looks(why)) => (v1::Detection::Polling, why),
    };
    let group = v1::GroupStatus {
        follow: follow.into(),
        over,
        traced,
        followed,
        missed,
        dropped,
        untraced,
        not_followed: not_followed.collect(),
        detection: detection.into(),
        detection_why,
    };
    // A first process that has called `exec` has several rows. The latest one gets the state.
    if let Some(row) = rows.iter_mut().rev().find(|row| row.pid == root) {
        row.group = Some(group);
    }
    rows
}

fn module(status: ModuleStatus) -> v1::ModuleStatus {
    let ModuleStatus {
        path,
        build_id,
        functions,
        functions_on,
        copied_bytes,
        armed,
        refusal: refused,
    } = status;
    v1::ModuleStatus {
        path,
        build_id: build_id.map(|id| id.to_string()).unwrap_or_default(),
        functions,
        functions_on,
        copied_bytes,
        armed_within_ns: armed.map_or(0, |armed| nanoseconds(armed.within)),
        armed_measured: armed.is_some_and(|armed| armed.since == Since::Mapping),
        refusal: refused.map(refusal),
    }
}

fn session_state(phase: Phase) -> v1::SessionState {
    match phase {
        Phase::Tracing => v1::SessionState::Tracing,
        Phase::Detaching => v1::SessionState::Detaching,
        Phase::Failed => v1::SessionState::Failed,
        Phase::Exited => v1::SessionState::Exited,
    }
}

/// The fields of every chunk of a fetched trace, without its bytes. The copies took `within`.
pub(crate) fn retained(statuses: &[Status], within: Duration) -> v1::TraceChunk {
    v1::TraceChunk {
        data: Vec::new(),
        events: statuses.iter().map(|status| status.retained_events).sum(),
        lost: statuses
            .iter()
            .fold(0, |lost, status| status.lost.saturating_add(lost)),
        reader_lost: 0,
        copied_within_ns: nanoseconds(within),
        entries: 0,
        indexed: false,
        threads_without_runs: 0,
        waited_ns: 0,
        without_runs_because: String::new(),
        ended_early: false,
        begins_file: false,
        sums: Vec::new(),
        position: Vec::new(),
        continues: false,
    }
}

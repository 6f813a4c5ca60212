//! The state of the processes that are followed from one.

use xrayd_proto::v1::{Detection, Follow, GroupStatus};

use super::text::printable;
use super::units;

/// The gaps in the group's trace, a line each; empty for a trace without gaps.
pub(crate) fn not_whole(group: &GroupStatus) -> Vec<String> {
    let mut lines = Vec::new();
    if group.missed > 0 {
        let missed = match group.missed {
            1 => "1 process".to_owned(),
            several => format!("{} processes", units::count(several)),
        };
        lines.push(format!(
            "{missed} with sleds ended before xrayd could attach"
        ));
    }
    lines.extend(group.not_followed.iter().map(|process| {
        let command = printable(&process.command);
        let refusal = process.refusal.as_ref();
        let (message, reason) = refusal.map_or(("", ""), |refusal| {
            (refusal.message.as_str(), refusal.reason.as_str())
        });
        let message = printable(message);
        format!(
            "process {} ({command}) was not followed: {message} [{reason}]",
            process.pid
        )
    }));
    lines
}

/// One line with the counts.
pub(crate) fn counts(root: u32, group: &GroupStatus) -> String {
    let GroupStatus {
        follow,
        over,
        traced,
        followed,
        missed: _,
        dropped,
        untraced,
        not_followed: _,
        detection: _,
        detection_why: _,
    } = group;
    let what = match Follow::try_from(*follow) {
        Ok(Follow::Fork) => "its forks are followed",
        Ok(Follow::Exec) => "the program that it becomes is followed",
        _ => "all processes that come from it are followed",
    };
    let over = if *over { ", all have ended" } else { "" };
    let dropped = match dropped {
        0 => String::new(),
        dropped => format!(", {dropped} ended and dropped to save memory"),
    };
    format!(
        "process {root}: {what}{over}; {traced} traced, {followed} followed so far, {untraced} without sleds or not traceable{dropped}"
    )
}

/// The way in which new processes are noticed, while there can be any.
pub(crate) fn detection(group: &GroupStatus) -> Option<String> {
    match group.detection() {
        _ if group.over => None,
        Detection::Perf => Some("new processes are detected at once, by perf events".to_owned()),
        Detection::Polling => {
            let why = printable(&group.detection_why);
            Some(format!(
                "new processes are detected by looking every few milliseconds: {why}"
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use xrayd_proto::v1::{NotFollowed, Refusal};

    use super::*;

    pub(crate) fn sample() -> GroupStatus {
        GroupStatus {
            follow: Follow::All.into(),
            over: false,
            traced: 33,
            followed: 40,
            missed: 2,
            dropped: 1,
            untraced: 3,
            not_followed: vec![NotFollowed {
                pid: 977,
                command: "./helper \u{1b}[2J".into(),
                refusal: Some(Refusal {
                    reason: "permission".into(),
                    message: "process 977 belongs to user 0 now; user 1000 may not trace it".into(),
                }),
            }],
            detection: Detection::Polling.into(),
            detection_why: "no perf events: Permission denied".into(),
        }
    }

    #[test]
    fn the_detection_method_is_shown_while_processes_can_come() {
        let looks = sample();
        let perf = GroupStatus {
            detection: Detection::Perf.into(),
            detection_why: String::new(),
            ..sample()
        };
        let reported = |group| detection(group).unwrap();
        assert!(reported(&looks).ends_with("milliseconds: no perf events: Permission denied"));
        assert!(reported(&perf).ends_with("at once, by perf events"));
        let over = GroupStatus { over: true, ..perf };
        assert_eq!(detection(&over), None);
    }
}

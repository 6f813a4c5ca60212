//! Going on with the sessions of a daemon that has ended. Their processes are adopted: no thread
//! stops, the functions that are on stay on, and the drain reads on where the former one stopped.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    attach::{Attached, EarlierSession},
    attach_report::AttachReport,
    follow::Follow,
    group::{Group, Root},
    left_on::may_have_code,
    parallel::{MOST_IN_A_CALL, MOST_IN_A_GROUP, in_parallel},
    refusals::{busy, has_ended},
    registry::Registry,
    session::Session,
    session_record::SessionRecord,
};
use crate::{
    control::Rules,
    pid::Pid,
    refusal::{Reason, Refusal, Result},
};

/// The outcome for one process: the daemon goes on with its session, or has a reason not to.
pub(crate) type Recovered = (Pid, Result<AttachReport>);

/// A session whose process has ended, and the refusal of the process.
type Ended<'a> = (&'a SessionRecord, Refusal);

/// A session that the daemon goes on with.
#[derive(Debug)]
struct Member<'a> {
    record: &'a SessionRecord,
    session: Arc<Session>,
    rules: Rules,
}

impl Registry {
    /// Goes on with these sessions. Those of processes that have ended keep their retained events.
    /// A record is removed if nothing is left of its session. A record that is refused for another
    /// reason stays for the next daemon.
    pub(crate) fn recover(&self, records: &[SessionRecord]) -> Vec<Recovered> {
        let mut latest = HashMap::<(Pid, u64), u64>::new();
        for record in records.iter().filter(|record| !record.has_ended) {
            let number = latest.entry((record.pid, record.start_time)).or_default();
            *number = record.session.max(*number);
        }
        // A process has one session at a time. An older record of it was left by a daemon that
        // could not go on with its session.
        let is_living = |record: &&SessionRecord| {
            let latest = latest.get(&(record.pid, record.start_time));
            !record.has_ended && latest == Some(&record.session)
        };
        let (living, ended): (Vec<_>, Vec<_>) = records.iter().partition(is_living);
        let mut groups = BTreeMap::<(Pid, u64), Vec<&SessionRecord>>::new();
        for record in living {
            let root = (record.group.root, record.group.root_start_time);
            groups.entry(root).or_default().push(record);
        }
        let groups: Vec<_> = groups.into_values().collect();
        let recovered = in_parallel(&groups, MOST_IN_A_CALL, |records| {
            self.recover_group(records)
        });
        let mut outcomes = Vec::new();
        let mut ended: Vec<_> = ended
            .into_iter()
            .map(|record| (record, has_ended(record.pid)))
            .collect();
        for (its_outcomes, its_ended) in recovered {
            outcomes.extend(its_outcomes);
            ended.extend(its_ended);
        }
        // One after the other, and after the others: a living process keeps its pid, and the oldest
        // sessions go if there are too many. The later session of a process replaces the earlier
        // one.
        ended.sort_by_key(|(record, _)| record.session);
        for (record, refusal) in ended {
            let outcome = match self.bring_back(record) {
                Ok(Some(Attached { session, report })) => {
                    self.join_ended(record, &session);
                    Ok(report)
                }
                Ok(None) => {
                    if let Some(kept) = self.kept() {
                        kept.records.remove(record);
                    }
                    Err(refusal)
                }
                Err(refusal) => Err(refusal),
            };
            outcomes.push((record.pid, outcome));
            self.drop_oldest_exited();
        }
        self.drop_oldest_exited();
        outcomes
    }

    /// Goes on with the sessions of one group. Also returns those whose processes have ended.
    fn recover_group<'a>(&self, records: &[&'a SessionRecord]) -> (Vec<Recovered>, Vec<Ended<'a>>) {
        let (mut outcomes, mut ended) = (Vec::new(), Vec::new());
        let mut members = Vec::new();
        let gone_on = in_parallel(records, MOST_IN_A_GROUP, |record| self.go_on(record));
        for (&record, gone_on) in records.iter().zip(gone_on) {
            match gone_on {
                Ok((attached, rules)) => {
                    outcomes.push((record.pid, Ok(attached.report)));
                    members.push(Member {
                        record,
                        session: attached.session,
                        rules,
                    });
                }
                Err(refusal) if is_over(record, refusal.reason) => ended.push((record, refusal)),
                Err(refusal) => outcomes.push((record.pid, Err(refusal))),
            }
        }
        // The first process is the first member, unless it has ended.
        members.sort_by_key(|member| member.record.group.kinship.is_some());
        if let Some((first, rest)) = members.split_first()
            && let Err(refusal) = self.gather(first, rest, first.record.group.follow)
        {
            for (pid, outcome) in outcomes.iter_mut().filter(|(_, outcome)| outcome.is_ok()) {
                *outcome = Err(self.give_up(*pid, &refusal));
            }
        }
        (outcomes, ended)
    }

    /// Adds the session of a process that has ended to its group, or makes a group of it.
    fn join_ended(&self, record: &SessionRecord, session: &Arc<Session>) {
        let of = &record.group;
        let groups = self.groups();
        let joined = match groups.iter().find(|group| group.root() == of.root) {
            Some(group) if group.start_time == of.root_start_time => {
                let joined = group.rejoin(session, of.kinship);
                group.record(session);
                joined
            }
            // A group of another process has the pid now.
            Some(_) => Ok(()),
            None => {
                let member = Member {
                    record,
                    session: Arc::clone(session),
                    rules: Rules::default(),
                };
                self.gather(&member, &[], Follow::None)
            }
        };
        if let Err(refusal) = joined {
            tracing::warn!(pid = %record.pid, %refusal, "an ended process is in no group");
        }
    }

    fn go_on(&self, record: &SessionRecord) -> Result<(Attached, Rules)> {
        let payer = record.caller.and_then(|caller| caller.payer());
        let choices = record.choices.compile(self.accounts(), payer)?;
        let rules = choices.rules.clone();
        let earlier = EarlierSession::Recorded {
            choices: Box::new(choices),
            session: record.session,
        };
        match self.attach_session(record.pid, record.options(), earlier)? {
            (attached, true) => Ok((attached, rules)),
            // A client was faster.
            (_, false) => Err(busy(record.pid)),
        }
    }

    /// Makes a group of sessions again, and goes on with the search for more members.
    fn gather(&self, first: &Member<'_>, rest: &[Member<'_>], follow: Follow) -> Result<()> {
        let of = &first.record.group;
        let (root, joining) = match of.kinship {
            None => (Root::Traced(Arc::clone(&first.session)), None),
            Some(_) => {
                let root = Root::Gone {
                    pid: of.root,
                    start_time: of.root_start_time,
                    credentials: *first.session.credentials(),
                };
                (root, Some(first))
            }
        };
        let options = first.record.options();
        let settings = first.record.choices.settings.clone();
        let group = Group::recovered(root, (options, of.caller), settings, first.rules.clone());
        for member in joining.into_iter().chain(rest) {
            group.rejoin(&member.session, member.record.group.kinship)?;
        }
        self.found(group, follow).map(drop)
    }

    fn give_up(&self, pid: Pid, why: &Refusal) -> Refusal {
        if let Err(second) = self.detach(pid) {
            tracing::warn!(%pid, %second, "cannot detach from a process");
        }
        why.clone()
    }
}

/// True if a process that is refused for this reason has ended, or runs another program by now.
fn is_over(record: &SessionRecord, reason: Reason) -> bool {
    reason.leaves_nothing() || !may_have_code(record.pid, record.start_time)
}

//! Going on with the sessions of a daemon that has ended. Their processes are adopted: no thread
//! stops, the functions that are on stay on, and the drain reads on where the former one stopped.

use std::{collections::BTreeMap, iter, sync::Arc};

use super::{
    attach::{Attached, EarlierSession},
    attach_report::AttachReport,
    follow::Follow,
    group::{Group, Root},
    left_on::may_have_code,
    parallel::{MOST_IN_A_CALL, in_parallel},
    refusals::has_ended,
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
        let (ended, living): (Vec<_>, Vec<_>) = records.iter().partition(|one| one.has_ended);
        let mut outcomes = Vec::new();
        let mut members = Vec::new();
        let mut ended: Vec<_> = ended
            .into_iter()
            .map(|record| (record, has_ended(record.pid)))
            .collect();
        let gone_on = in_parallel(&living, MOST_IN_A_CALL, |record| self.go_on(record));
        for (record, gone_on) in living.into_iter().zip(gone_on) {
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
        // One after the other, and after the others: a living process keeps its pid, and the oldest
        // sessions go if there are too many.
        for (record, refusal) in ended {
            let outcome = match self.bring_back(record) {
                Ok(Some(Attached { session, report })) => {
                    members.push(Member {
                        record,
                        session,
                        rules: Rules::default(),
                    });
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
        let is_there = |member: &Member<'_>| {
            let there = self.get(member.record.pid);
            there.is_some_and(|session| session.start_time() == member.record.start_time)
        };
        members.retain(is_there);
        let mut groups = BTreeMap::<(Pid, u64), Vec<Member<'_>>>::new();
        for member in members {
            let group = &member.record.group;
            let root = (group.root, group.root_start_time);
            groups.entry(root).or_default().push(member);
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        for members in &mut groups {
            // The first process is the first member, unless it is gone.
            members.sort_by_key(|member| member.record.group.kinship.is_some());
        }
        let gathered = in_parallel(&groups, MOST_IN_A_CALL, |members| {
            let Some((first, rest)) = members.split_first() else {
                return Vec::new();
            };
            let Err(refusal) = self.gather_group(first, rest) else {
                return Vec::new();
            };
            let pids = members.iter().map(|member| member.record.pid);
            pids.map(|pid| (pid, self.give_up(pid, &refusal))).collect()
        });
        for (pid, refusal) in gathered.into_iter().flatten() {
            outcomes.retain(|(its, _)| *its != pid);
            outcomes.push((pid, Err(refusal)));
        }
        outcomes
    }

    fn go_on(&self, record: &SessionRecord) -> Result<(Attached, Rules)> {
        let payer = record.caller.and_then(|caller| caller.payer());
        let choices = record.choices.compile(self.accounts(), payer)?;
        let rules = choices.rules.clone();
        let earlier = EarlierSession::Recorded {
            choices: Box::new(choices),
            session: record.session,
        };
        let (attached, _) = self.attach_session(record.pid, record.options(), earlier)?;
        Ok((attached, rules))
    }

    /// Makes a group of sessions again, and goes on with the search for more members.
    fn gather_group(&self, first: &Member<'_>, rest: &[Member<'_>]) -> Result<()> {
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
        // The records of members that had ended have the choices of that time.
        let members = || iter::once(first).chain(rest);
        let living = members().find(|member| member.session.is_living());
        let Member { record, rules, .. } = living.unwrap_or(first);
        let group = Group::recovered(
            root,
            (record.options(), record.group.caller),
            record.choices.settings.clone(),
            rules.clone(),
        );
        for member in joining.into_iter().chain(rest) {
            group.rejoin(&member.session, member.record.group.kinship)?;
        }
        let follow = living.map_or(Follow::None, |living| living.record.group.follow);
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

//! Going on with the sessions of a daemon that has ended. Their processes are adopted: no thread
//! stops, the functions that are on stay on, and the drain reads on where the former one stopped.

use std::{collections::BTreeMap, iter, sync::Arc};

use super::{
    attach::{Attached, EarlierSession},
    attach_report::AttachReport,
    follow::Follow,
    group::{Group, Root},
    parallel::{MOST_IN_A_CALL, MOST_IN_A_GROUP, in_parallel},
    refusals::has_ended,
    registry::Registry,
    session::Session,
    session_record::SessionRecord,
};
use crate::{
    control::{CompiledChoices, Rules},
    pid::Pid,
    refusal::{Refusal, Result},
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
    pub(crate) fn recover(&self, records: Vec<SessionRecord>) -> Vec<Recovered> {
        let mut groups = BTreeMap::<(Pid, u64), Vec<SessionRecord>>::new();
        for record in records {
            let root = (record.group.root, record.group.root_start_time);
            groups.entry(root).or_default().push(record);
        }
        let groups: Vec<_> = groups.into_values().collect();
        let outcomes = in_parallel(&groups, MOST_IN_A_CALL, |records| {
            self.recover_group(records)
        });
        self.drop_oldest_exited();
        outcomes.into_iter().flatten().collect()
    }

    fn recover_group(&self, records: &[SessionRecord]) -> Vec<Recovered> {
        let mut outcomes = Vec::new();
        let mut members = Vec::new();
        let recovered = in_parallel(records, MOST_IN_A_GROUP, |record| {
            self.recover_session(record)
        });
        for (record, recovered) in records.iter().zip(recovered) {
            if let Err(refusal) = &recovered
                && refusal.reason.leaves_nothing()
                && let Some(records) = self.records()
            {
                records.remove(record.pid, record.start_time);
            }
            let outcome = recovered.map(|(attached, rules)| {
                members.push(Member {
                    record,
                    session: attached.session,
                    rules,
                });
                attached.report
            });
            outcomes.push((record.pid, outcome));
        }
        // The first process is the first member, unless it has ended.
        members.sort_by_key(|member| member.record.group.kinship.is_some());
        if let Some((first, rest)) = members.split_first()
            && let Err(refusal) = self.gather_group(first, rest)
        {
            for (pid, outcome) in outcomes.iter_mut().filter(|(_, outcome)| outcome.is_ok()) {
                *outcome = Err(self.give_up(*pid, &refusal));
            }
        }
        outcomes
    }

    fn recover_session(&self, record: &SessionRecord) -> Result<(Attached, Rules)> {
        let payer = record.caller.and_then(|caller| caller.payer());
        let choices = record.choices.compile(self.accounts(), payer)?;
        let rules = choices.rules.clone();
        let attached = match record.has_ended {
            true => Err(has_ended(record.pid)),
            false => self.go_on(record, choices),
        };
        let attached = attached.or_else(|refusal| match refusal.reason.leaves_nothing() {
            true => self.bring_back(record)?.ok_or(refusal),
            false => Err(refusal),
        })?;
        Ok((attached, rules))
    }

    fn go_on(&self, record: &SessionRecord, choices: CompiledChoices) -> Result<Attached> {
        let earlier = EarlierSession::Recorded {
            choices: Box::new(choices),
            session: record.session,
        };
        let (attached, _) = self.attach_session(record.pid, record.options(), earlier)?;
        Ok(attached)
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

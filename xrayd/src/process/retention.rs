//! The retention of events: the shares of living processes, and the sessions of ended processes.

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

use super::{session::Session, session_table::SessionTable};
use crate::quotas::{Accounts, Resource};

/// Limit on sessions of ended processes that are kept for a user. Each holds the names of its
/// functions, too.
const EXITED_PER_USER: usize = 64;
/// Bytes of events that each process may retain in any case.
const LEAST_RETAINED: u64 = 1 << 20;

/// The limits on retained events, for the sessions of a table.
#[derive(Debug)]
pub(super) struct Retention {
    pub(super) table: Arc<SessionTable>,
    pub(super) accounts: Arc<Accounts>,
    /// Limit on retained events of each process, in bytes.
    pub(super) retain_bytes: u64,
    /// Limit on retained events of ended processes for each user, in bytes.
    pub(super) retain_exited_bytes: u64,
    /// Limit on retained events of all living processes together, in bytes.
    pub(super) retain_together_bytes: u64,
}

// === impl Retention ===

impl Retention {
    /// Gives every living process its share of retained events. The members of a group share the
    /// limit of one process, the sessions that one user pays for share the user's quota, and all
    /// share the limit that holds for them together.
    pub(super) fn share_retained(&self) {
        let (groups, strays) = self.table.all_sessions();
        let groups = groups.iter().map(|group| group.sessions());
        let groups = groups.chain(strays.into_iter().map(|stray| vec![stray]));
        let living = |sessions: Vec<Arc<Session>>| -> Vec<_> {
            let living = sessions.into_iter().filter(|session| session.is_living());
            living.collect()
        };
        let groups: Vec<Vec<Arc<Session>>> = groups.map(living).collect();
        let mut paid: HashMap<u32, u64> = HashMap::new();
        for uid in groups.iter().flatten().filter_map(|one| one.ticket.payer()) {
            *paid.entry(uid).or_default() += 1;
        }
        let all = u64::try_from(groups.iter().flatten().count()).unwrap_or(u64::MAX);
        let of_all = self.retain_together_bytes / all.max(1);
        let retain_bytes = self.retain_bytes;
        let per_user = self.accounts.quotas().of(Resource::Retained).per_user;
        for group in groups {
            let members = u64::try_from(group.len()).unwrap_or(u64::MAX);
            for session in group {
                let payer = session.ticket.payer();
                let sessions = payer.and_then(|uid| paid.get(&uid)).copied();
                let most = sessions.map_or(u64::MAX, |sessions| per_user / sessions.max(1));
                let share = (retain_bytes / members.max(1)).min(most).min(of_all);
                session
                    .source
                    .output
                    .retain(share.max(LEAST_RETAINED.min(retain_bytes)));
            }
        }
    }

    /// Drops ended sessions above a user's limits, the oldest first.
    pub(super) fn drop_oldest_exited(&self) {
        let (groups, strays) = self.table.all_sessions();
        let all = groups.iter().flat_map(|group| group.sessions());
        let mut exited: Vec<_> = all
            .chain(strays)
            .filter_map(|session| Some((session.ended()?, session)))
            .collect();
        // The latest first.
        exited.sort_unstable_by_key(|(ended, session)| Reverse((*ended, session.pid())));
        let mut shares: HashMap<u32, (usize, u64)> = HashMap::new();
        for (_, session) in exited {
            let (pid, uid, bytes) = (
                session.pid(),
                session.uid(),
                session.source.output.counters().retained_bytes,
            );
            let (count, total) = shares.entry(uid).or_default();
            *count += 1;
            *total = total.saturating_add(bytes);
            let fits = *count <= EXITED_PER_USER && *total <= self.retain_exited_bytes;
            if *count > 1 && !fits {
                self.table.remove(&session);
                session.drop_record();
                for group in &groups {
                    group.members.drop_retained(&session);
                }
                tracing::warn!(
                    %pid,
                    uid,
                    bytes,
                    "dropped the retained events of an ended process, because newer ones need the \
                     room"
                );
            }
        }
        self.table.remove_empty_groups();
        self.share_retained();
    }
}

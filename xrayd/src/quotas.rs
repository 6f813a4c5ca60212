//! Quotas on the daemon's resources, for each user and for all users together.
//!
//! Sessions take a [`Ticket`] before they allocate anything. A dropped ticket gives everything
//! back. Root pays for nothing: what the totals leave of the machine is root's reserve.

use std::{
    collections::HashMap,
    fmt,
    str::FromStr,
    sync::{Arc, Mutex},
};

use crate::{
    lock::lock,
    refusal::{Reason, Refusal, Result},
    size::{ByteSize, SizeError},
};

/// A resource of the daemon that sessions use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Sessions. Those of followed processes, and ended ones that are retained, count as well.
    Sessions,
    /// Threads that sessions may take: one that hangs in a step of the controller, one in a step of
    /// the drain, and a thread that follows.
    Threads,
    /// Bytes of rings that are mapped into the daemon.
    Mapped,
    /// Bytes of retained events of living processes.
    Retained,
    /// Bytes of compiled selections, of running requests and of rules for later libraries.
    Patterns,
}

/// Limits of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Limit for each user but root.
    pub per_user: u64,
    /// Limit for all users but root together.
    pub total: u64,
}

/// Limits of all resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas([Quota; KINDS]);

/// One quota in the syntax of the command line: `NAME=PER_USER/TOTAL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaSetting {
    resource: Resource,
    quota: Quota,
}

/// The reason why a quota is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// One of the three parts is missing.
    #[error("a quota is written NAME=PER_USER/TOTAL, such as mapped=16TiB/64TiB")]
    Form,
    /// An unknown resource.
    #[error("there is no quota '{0}'; the quotas are {list}", list = Resource::list())]
    Name(String),
    /// The amount is neither a number nor a size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The total is smaller than the limit of one user.
    #[error("the total of quota {0} is less than its limit for one user")]
    Total(Resource),
}

/// The amounts in use of every resource.
#[derive(Debug)]
pub(crate) struct Accounts {
    quotas: Quotas,
    /// Only tickets change it.
    taken: Mutex<Taken>,
}

/// Amounts in use. Both fields only grow by amounts that were checked against the quotas.
#[derive(Debug, Default)]
struct Taken {
    /// Amounts of all users together.
    all: Amounts,
    /// Amounts of each user. A user without any has no entry.
    by_user: HashMap<u32, Amounts>,
}

/// Amounts of resources that are in use. A dropped ticket gives them back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Ticket {
    accounts: Arc<Accounts>,
    /// The user whose quotas count the ticket. `None` for root, who has no quota.
    payer: Option<u32>,
    amounts: Amounts,
}

/// Amounts, indexed by [`Resource`].
type Amounts = [u64; KINDS];

const KINDS: usize = Resource::ALL.len();

// === impl Resource ===

impl Resource {
    /// All resources, in the order of their declaration.
    pub const ALL: [Self; 5] = [
        Self::Sessions,
        Self::Threads,
        Self::Mapped,
        Self::Retained,
        Self::Patterns,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::Threads => "threads",
            Self::Mapped => "mapped",
            Self::Retained => "retained",
            Self::Patterns => "patterns",
        }
    }

    /// An amount of the resource, in words.
    fn show(self, amount: u64) -> String {
        let size = ByteSize::new(amount);
        let plural = if amount == 1 { "" } else { "s" };
        match self {
            Self::Sessions => format!("{amount} session{plural}"),
            Self::Threads => format!("{amount} thread{plural} of sessions"),
            Self::Mapped => format!("{size} of mapped rings"),
            Self::Retained => format!("{size} of retained events"),
            Self::Patterns => format!("{size} of compiled patterns"),
        }
    }

    fn is_bytes(self) -> bool {
        matches!(self, Self::Mapped | Self::Retained | Self::Patterns)
    }

    /// True if a user at the limit is not refused, but shares the amount anew among its sessions.
    fn is_shared(self) -> bool {
        self == Self::Retained
    }

    fn list() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl Quotas ===

impl Quotas {
    /// No limit but the machine's, for sessions in a user's own process.
    pub const NONE: Self = Self(
        [Quota {
            per_user: u64::MAX,
            total: u64::MAX,
        }; KINDS],
    );

    /// The default limits of a daemon. A user has room for a process group of the largest size with
    /// default rings, or for one attach with the largest rings. All users together map half of the
    /// 128 TiB of a process.
    pub const DAEMON: Self = Self([
        Quota::new(1000, 2000),
        Quota::new(2500, 5000),
        Quota::new(16 << 40, 64 << 40),
        Quota::new(2 << 30, 8 << 30),
        Quota::new(64 << 20, 256 << 20),
    ]);

    /// The limits of one resource.
    pub fn of(&self, resource: Resource) -> Quota {
        self.0[resource as usize]
    }

    /// The quotas with one setting changed.
    #[must_use]
    pub fn with(mut self, setting: QuotaSetting) -> Self {
        self.0[setting.resource as usize] = setting.quota;
        self
    }
}

impl fmt::Display for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, resource) in Resource::ALL.into_iter().enumerate() {
            let quota = self.of(resource);
            let gap = if index == 0 { "" } else { " " };
            write!(f, "{gap}{}", QuotaSetting { resource, quota })?;
        }
        Ok(())
    }
}

impl Quota {
    const fn new(per_user: u64, total: u64) -> Self {
        Self { per_user, total }
    }
}

// === impl QuotaSetting ===

impl FromStr for QuotaSetting {
    type Err = QuotaError;

    fn from_str(text: &str) -> std::result::Result<Self, QuotaError> {
        let (name, limits) = text.split_once('=').ok_or(QuotaError::Form)?;
        let (per_user, total) = limits.split_once('/').ok_or(QuotaError::Form)?;
        let resource = Resource::ALL.into_iter().find(|one| one.name() == name);
        let resource = resource.ok_or_else(|| QuotaError::Name(name.to_owned()))?;
        let amount = |text: &str| text.parse::<ByteSize>().map(ByteSize::bytes);
        let quota = Quota::new(amount(per_user)?, amount(total)?);
        if quota.total < quota.per_user {
            return Err(QuotaError::Total(resource));
        }
        Ok(Self { resource, quota })
    }
}

impl fmt::Display for QuotaSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resource,
            quota: Quota { per_user, total },
        } = *self;
        match resource.is_bytes() {
            true => {
                let (per_user, total) = (ByteSize::new(per_user), ByteSize::new(total));
                write!(f, "{resource}={per_user}/{total}")
            }
            false => write!(f, "{resource}={per_user}/{total}"),
        }
    }
}

// === impl Accounts ===

impl Accounts {
    pub(crate) fn new(quotas: Quotas) -> Arc<Self> {
        Arc::new(Self {
            quotas,
            taken: Mutex::default(),
        })
    }

    pub(crate) fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Takes all wanted amounts, or none. `payer` is `None` for root.
    ///
    /// # Errors
    /// The request would exceed a quota. The refusal names it.
    pub(crate) fn take(
        self: &Arc<Self>,
        payer: Option<u32>,
        wanted: &[(Resource, u64)],
    ) -> Result<Ticket> {
        let mut ticket = Ticket {
            accounts: Arc::clone(self),
            payer,
            amounts: Amounts::default(),
        };
        ticket.set(wanted)?;
        Ok(ticket)
    }

    /// Changes a user's amounts from `before` to `after`.
    fn change(&self, uid: u32, before: &Amounts, after: &Amounts) -> Result<()> {
        let mut taken = lock(&self.taken);
        let his = taken.by_user.get(&uid).copied().unwrap_or_default();
        let (mut user, mut all) = (his, taken.all);
        for resource in Resource::ALL {
            let kind = resource as usize;
            let quota = self.quotas.of(resource);
            let (less, more) = (before[kind], after[kind]);
            user[kind] = user[kind].saturating_sub(less).saturating_add(more);
            // What sessions of a user share never counts for more than the user's quota.
            let counted = |amount: u64| amount.min(quota.per_user);
            all[kind] = all[kind]
                .saturating_sub(counted(his[kind]))
                .saturating_add(counted(user[kind]));
            if more <= less {
                continue;
            }
            if user[kind] > quota.per_user && !resource.is_shared() {
                return Err(exceeded(
                    resource,
                    quota,
                    more - less,
                    Some((uid, his[kind])),
                ));
            }
            if all[kind] > quota.total {
                return Err(exceeded(resource, quota, more - less, None));
            }
        }
        taken.all = all;
        match user.iter().all(|&amount| amount == 0) {
            true => taken.by_user.remove(&uid),
            false => taken.by_user.insert(uid, user),
        };
        Ok(())
    }
}

// === impl Ticket ===

impl Ticket {
    pub(crate) fn payer(&self) -> Option<u32> {
        self.payer
    }

    pub(crate) fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    /// Sets these amounts. Amounts of other resources stay.
    ///
    /// # Errors
    /// The request would exceed a quota. The ticket is unchanged then.
    pub(crate) fn set(&mut self, wanted: &[(Resource, u64)]) -> Result<()> {
        let mut amounts = self.amounts;
        for &(resource, amount) in wanted {
            amounts[resource as usize] = amount;
        }
        if let Some(uid) = self.payer {
            self.accounts.change(uid, &self.amounts, &amounts)?;
        }
        self.amounts = amounts;
        Ok(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(uid) = self.payer {
            let given_back = self
                .accounts
                .change(uid, &self.amounts, &Amounts::default());
            debug_assert!(given_back.is_ok(), "nothing is refused that is given back");
        }
    }
}

fn exceeded(resource: Resource, quota: Quota, more: u64, user: Option<(u32, u64)>) -> Refusal {
    let setting = QuotaSetting { resource, quota };
    let more = resource.show(more);
    let message = match user {
        Some((uid, has)) => format!(
            "user {uid} has {} of at most {}, and needs {more} more; `xrayd --quota {setting}` \
             sets the limit",
            resource.show(has),
            resource.show(quota.per_user),
        ),
        None => format!(
            "all users together may have at most {}, and this request needs {more} more; `xrayd \
             --quota {setting}` sets the limit",
            resource.show(quota.total),
        ),
    };
    Refusal::new(Reason::Quota, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(settings: &[&str]) -> Arc<Accounts> {
        let quotas = settings.iter().fold(Quotas::DAEMON, |quotas, setting| {
            quotas.with(setting.parse().unwrap())
        });
        Accounts::new(quotas)
    }

    fn of(accounts: &Arc<Accounts>, uid: u32, resource: Resource, amount: u64) -> Result<Ticket> {
        accounts.take(Some(uid), &[(resource, amount)])
    }

    #[test]
    fn amounts_are_in_the_singular_or_in_the_plural() {
        for (resource, amount, expected) in [
            (Resource::Sessions, 0, "0 sessions"),
            (Resource::Sessions, 1, "1 session"),
            (Resource::Threads, 1, "1 thread of sessions"),
            (Resource::Threads, 2, "2 threads of sessions"),
        ] {
            assert_eq!(resource.show(amount), expected);
        }
    }

    #[test]
    fn a_user_is_refused_by_its_quota_and_all_by_the_total_and_root_by_none() {
        let accounts = accounts(&["sessions=2/3"]);
        let take = |uid| of(&accounts, uid, Resource::Sessions, 1);
        let (_first, second) = (take(1).unwrap(), take(1).unwrap());
        let refusal = take(1).unwrap_err();
        assert_eq!(refusal.reason, Reason::Quota);
        for part in ["user 1 has 2 sessions", "--quota sessions=2/3"] {
            assert!(refusal.message.contains(part), "{}", refusal.message);
        }
        let _third = take(2).unwrap();
        let refusal = take(3).unwrap_err();
        assert!(refusal.message.contains("all users"), "{}", refusal.message);
        let _root = accounts
            .take(None, &[(Resource::Sessions, u64::MAX)])
            .unwrap();
        drop(second);
        let _third = take(3).unwrap();
    }

    #[test]
    fn a_ticket_is_changed_as_a_whole_and_gives_everything_back() {
        let accounts = accounts(&["mapped=10/20", "threads=1/2"]);
        let mut ticket = of(&accounts, 1, Resource::Mapped, 10).unwrap();
        let both = [(Resource::Mapped, 5), (Resource::Threads, 2)];
        assert_eq!(ticket.set(&both).unwrap_err().reason, Reason::Quota);
        assert!(of(&accounts, 1, Resource::Mapped, 1).is_err());
        ticket.set(&[(Resource::Mapped, 9)]).unwrap();
        ticket.set(&[(Resource::Threads, 1)]).unwrap();
        drop(of(&accounts, 1, Resource::Mapped, 1).unwrap());
        drop(ticket);
        assert!(lock(&accounts.taken).by_user.is_empty());
        assert_eq!(lock(&accounts.taken).all, Amounts::default());
    }

    #[test]
    fn shared_memory_counts_up_to_the_quota_of_each_user() {
        let accounts = accounts(&["retained=10/25"]);
        let take = |uid, amount| of(&accounts, uid, Resource::Retained, amount);
        let one = [
            take(1, 8).unwrap(),
            take(1, 8).unwrap(),
            take(1, 8).unwrap(),
        ];
        let _two = take(2, 100).unwrap();
        assert!(take(3, 6).is_err());
        let _three = take(3, 5).unwrap();
        drop(one);
        let _four = take(4, 10).unwrap();
        assert!(take(1, 1).is_err());
    }

    #[test]
    fn quotas_are_read_as_they_are_written() {
        for text in ["sessions=7/9", "mapped=1TiB/2TiB", "retained=1MiB/1MiB"] {
            let setting: QuotaSetting = text.parse().unwrap();
            assert_eq!(setting.to_string(), text);
        }
        let error = |text: &str| text.parse::<QuotaSetting>().unwrap_err().to_string();
        assert!(error("sessions=7").contains("NAME=PER_USER/TOTAL"));
        assert!(error("7/9").contains("NAME=PER_USER/TOTAL"));
        assert!(error("fish=7/9").contains("the quotas are sessions, threads, mapped"));
        assert!(error("sessions=9/7").contains("less than its limit for one user"));
        assert!(error("mapped=x/9").contains('x'), "{}", error("mapped=x/9"));
        assert!(Quotas::DAEMON.to_string().contains("mapped=16TiB/64TiB"));
    }
}

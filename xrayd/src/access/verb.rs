//! What a rule of access allows.

use std::{fmt, str::FromStr};

/// One right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Seeing a process, its functions and its state.
    List,
    /// Attaching to it, switching its functions, and the numbers of calls. Includes `list`.
    Count,
    /// Sums of calls by stack. Includes `count`.
    Profile,
    /// Each call with its time, and triggers. Includes `profile`.
    Trace,
    /// Recording and reading arguments and results of calls.
    Arguments,
    /// Reading the data of events that the program emits.
    Events,
    /// Seeing the policies, and reading all that they record, arguments and data included.
    Recordings,
    /// Seeing and changing the policies.
    Policy,
    /// Restarting the daemon, and seeing and reloading the rules of access.
    Admin,
}

/// A set of rights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verbs(u16);

// === impl Verb ===

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 9] = [
        Self::List,
        Self::Count,
        Self::Profile,
        Self::Trace,
        Self::Arguments,
        Self::Events,
        Self::Recordings,
        Self::Policy,
        Self::Admin,
    ];

    /// Its name in files and requests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Count => "count",
            Self::Profile => "profile",
            Self::Trace => "trace",
            Self::Arguments => "arguments",
            Self::Events => "events",
            Self::Recordings => "recordings",
            Self::Policy => "policy",
            Self::Admin => "admin",
        }
    }

    /// True if the right is about processes. The others are about the daemon.
    pub const fn is_about_processes(self) -> bool {
        !matches!(self, Self::Recordings | Self::Policy | Self::Admin)
    }

    /// The rights that this one includes.
    const fn included(self) -> &'static [Self] {
        match self {
            Self::Trace => &[Self::List, Self::Count, Self::Profile],
            Self::Profile => &[Self::List, Self::Count],
            Self::Count => &[Self::List],
            _ => &[],
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Verb {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let verb = Self::ALL.into_iter().find(|verb| verb.name() == text);
        verb.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no verb {text:?}; the verbs are {names}")
        })
    }
}

// === impl Verbs ===

impl Verbs {
    /// Adds a right, and those that it includes.
    pub(super) fn add(&mut self, verb: Verb) {
        for verb in verb.included().iter().chain([&verb]) {
            self.0 |= 1 << *verb as u16;
        }
    }

    /// True if a right is in the set.
    pub fn has(self, verb: Verb) -> bool {
        self.0 & (1 << verb as u16) != 0
    }

    /// The rights of the set.
    pub fn iter(self) -> impl Iterator<Item = Verb> {
        Verb::ALL.into_iter().filter(move |verb| self.has(*verb))
    }

    /// The rights of one of the two sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The rights of both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Display for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Verb::name).collect();
        f.write_str(&names.join(", "))
    }
}

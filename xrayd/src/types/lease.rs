//! The identity of a lease: a temporary override of which functions are on.

use std::num::NonZeroU64;

/// The identity of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseId {
    /// The lease of a client, which chooses the number. It ends with the daemon, because the
    /// daemon's end breaks the client's connection.
    Client(NonZeroU64),
    /// The lease of a policy, by the number of the policy's name. A later daemon goes on with it.
    Policy(NonZeroU64),
}

// === impl LeaseId ===

impl LeaseId {
    /// The lease of the policy with this name. The number is the same in each version of xrayd: the
    /// FNV-1a hash of the name (<https://www.rfc-editor.org/rfc/rfc9923>).
    #[must_use]
    pub fn of_policy(name: &str) -> Self {
        const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0100_0000_01b3;
        let hash = name.bytes().fold(BASIS, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(PRIME)
        });
        Self::Policy(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN))
    }

    /// True if a later daemon goes on with the lease.
    pub(crate) const fn outlives_daemon(self) -> bool {
        matches!(self, Self::Policy(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_keeps_its_number() {
        // The hash of "foobar" in the table of test vectors of the RFC.
        let number = NonZeroU64::new(0x8594_4171_f739_67e8).unwrap();
        assert_eq!(LeaseId::of_policy("foobar"), LeaseId::Policy(number));
        assert_ne!(LeaseId::of_policy("foobar"), LeaseId::Client(number));
    }
}

//! Process and thread ids as types.

use std::fmt;

/// A process id (thread group id) in the daemon's pid namespace; always positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid(i32);

/// A thread id in the daemon's pid namespace; always positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tid(i32);

/// An address in a target's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetAddr(pub u64);

/// A number that is no process id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a process id")]
pub struct NotAPid(pub u64);

macro_rules! id {
    ($name:ident) => {
        impl $name {
            /// The number, as system calls take it.
            pub const fn as_raw(self) -> i32 {
                self.0
            }

            /// The number, as the API and traces carry it.
            pub const fn as_u32(self) -> u32 {
                self.0.cast_unsigned()
            }

            pub(crate) const fn as_nix(self) -> nix::unistd::Pid {
                nix::unistd::Pid::from_raw(self.0)
            }
        }

        impl TryFrom<u32> for $name {
            type Error = NotAPid;

            fn try_from(value: u32) -> Result<Self, NotAPid> {
                match i32::try_from(value) {
                    Ok(raw) if raw > 0 => Ok(Self(raw)),
                    _ => Err(NotAPid(u64::from(value))),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(Pid);
id!(Tid);

// === impl Pid ===

impl Pid {
    /// This process.
    pub fn this() -> Self {
        Self(nix::unistd::getpid().as_raw())
    }

    /// The thread that shares the process's id.
    pub const fn leader(self) -> Tid {
        Tid(self.0)
    }
}

// === impl TargetAddr ===

impl fmt::Display for TargetAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

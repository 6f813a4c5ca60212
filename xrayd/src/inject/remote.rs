//! System calls that a stopped thread of the target makes. Mappings are undone when [`Remote`] is
//! dropped, unless they are committed.

use std::io;

use nix::libc;

use crate::{
    pid::TargetAddr,
    sys::{
        Memory, PR_SET_VMA, kernel_names_mappings,
        ptrace::{Stopped, TraceError},
    },
};

/// The result of `PR_GET_TSC` for a thread that may not read the time stamp counter.
const PR_TSC_SIGSEGV: u32 = 2;

/// The failure of a call in a borrowed thread.
#[derive(Debug, thiserror::Error)]
pub(super) enum RemoteError {
    /// The thread could not be made to make the call.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The call failed in the target.
    #[error("{call} in the target")]
    Refused {
        /// The call.
        call: &'static str,
        /// The error of the call.
        #[source]
        source: io::Error,
    },
}

/// The place of a new mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MappingPlace {
    /// Any place.
    Any,
    /// This address, which must be free.
    Free(u64),
    /// This address, in place of the mapping that is there.
    Over(u64),
}

/// A stopped thread that makes calls.
#[derive(Debug)]
pub(super) struct Remote<'a> {
    thread: &'a mut Stopped,
    instruction: u64,
    /// Mappings that are unmapped if a later step fails. Filled by `map`, emptied by `commit`.
    mapped: Vec<(u64, u64)>,
}

// === impl Remote ===

impl<'a> Remote<'a> {
    /// Borrows a thread whose signals are blocked.
    pub(super) fn new(thread: &'a mut Stopped, instruction: u64) -> Self {
        Self {
            thread,
            instruction,
            mapped: Vec::new(),
        }
    }

    /// The thread that makes the calls, in its own state.
    pub(super) fn thread(&self) -> &Stopped {
        self.thread
    }

    /// `mmap`.
    pub(super) fn map(
        &mut self,
        call: &'static str,
        place: MappingPlace,
        bytes: u64,
        protection: i32,
        flags: i32,
        fd: i64,
    ) -> Result<u64, RemoteError> {
        let (address, fixed) = match place {
            MappingPlace::Any => (None, 0),
            MappingPlace::Free(address) => (Some(address), libc::MAP_FIXED_NOREPLACE),
            MappingPlace::Over(address) => (Some(address), libc::MAP_FIXED),
        };
        let at = self.call(
            call,
            libc::SYS_mmap,
            [
                address.unwrap_or(0),
                bytes,
                u64::from(protection.cast_unsigned()),
                u64::from((flags | fixed).cast_unsigned()),
                fd.cast_unsigned(),
                0,
            ],
        )?;
        self.mapped.push((at, bytes));
        // Kernels before 4.17 treat the flag as a hint.
        match address {
            Some(wanted) if wanted != at => {
                Err(refused(call)(io::Error::from_raw_os_error(libc::EEXIST)))
            }
            _ => Ok(at),
        }
    }

    /// `madvise`.
    pub(super) fn advise(
        &mut self,
        address: u64,
        bytes: u64,
        advice: i32,
    ) -> Result<(), RemoteError> {
        let advice = u64::from(advice.cast_unsigned());
        self.call("madvise", libc::SYS_madvise, [address, bytes, advice])
            .map(|_| ())
    }

    /// `munlock`, which needs no privilege.
    pub(super) fn unlock(&mut self, address: u64, bytes: u64) -> Result<(), RemoteError> {
        self.call("munlock", libc::SYS_munlock, [address, bytes])
            .map(|_| ())
    }

    /// `mprotect`.
    pub(super) fn protect(
        &mut self,
        address: u64,
        bytes: u64,
        protection: i32,
    ) -> Result<(), RemoteError> {
        let protection = u64::from(protection.cast_unsigned());
        self.call("mprotect", libc::SYS_mprotect, [address, bytes, protection])
            .map(|_| ())
    }

    /// Names a mapping for readers of the target's maps. The mapping also works without a name.
    pub(super) fn name(&mut self, address: u64, bytes: u64, name: u64) {
        if !kernel_names_mappings() {
            return;
        }
        let set = u64::from(PR_SET_VMA.cast_unsigned());
        let arguments = [set, 0, address, bytes, name];
        if let Err(error) = self.call("prctl", libc::SYS_prctl, arguments) {
            tracing::debug!(%error, "cannot name a mapping");
        }
    }

    /// True if the thread may not read the time stamp counter (`PR_SET_TSC`). `scratch` is room for
    /// a word in the target.
    pub(super) fn has_no_counter(
        &mut self,
        memory: &Memory,
        scratch: u64,
    ) -> Result<bool, RemoteError> {
        let get = u64::from(libc::PR_GET_TSC.cast_unsigned());
        self.call("prctl", libc::SYS_prctl, [get, scratch])?;
        let answer = memory.read_u32(TargetAddr(scratch));
        let answer = answer.map_err(refused("prctl"))?;
        Ok(answer == PR_TSC_SIGSEGV)
    }

    /// `munmap`.
    pub(super) fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), RemoteError> {
        self.call("munmap", libc::SYS_munmap, [address, bytes])
            .map(|_| ())
    }

    /// `memfd_create` with the name at `name`. The file is empty.
    pub(super) fn memfd(&mut self, name: u64) -> Result<i64, RemoteError> {
        let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        self.call("memfd_create", libc::SYS_memfd_create, [name, flags])
            .map(u64::cast_signed)
    }

    /// `close`.
    pub(super) fn close(&mut self, fd: i64) {
        if let Err(error) = self.call("close", libc::SYS_close, [fd.cast_unsigned()]) {
            tracing::warn!(%error, "cannot close a descriptor in the target");
        }
    }

    /// Keeps the mappings, and returns them.
    pub(super) fn commit(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.mapped)
    }

    /// Makes a call. Arguments behind the last given one are 0.
    fn call<const N: usize>(
        &mut self,
        call: &'static str,
        number: i64,
        given: [u64; N],
    ) -> Result<u64, RemoteError> {
        const { assert!(N <= 6, "a system call has six arguments at most") };
        let mut arguments = [0; 6];
        arguments[..N].copy_from_slice(&given);
        let result = self
            .thread
            .system_call(self.instruction, number, arguments)?;
        if (-4095..0).contains(&result) {
            let errno = i32::try_from(-result).unwrap_or(libc::EIO);
            return Err(refused(call)(io::Error::from_raw_os_error(errno)));
        }
        Ok(result.cast_unsigned())
    }
}

impl Drop for Remote<'_> {
    fn drop(&mut self) {
        for (address, bytes) in std::mem::take(&mut self.mapped) {
            if let Err(error) = self.unmap(address, bytes) {
                tracing::warn!(%error, "cannot remove a mapping from the target");
            }
        }
    }
}

/// Names the call that failed, for `map_err`.
pub(super) fn refused(call: &'static str) -> impl FnOnce(io::Error) -> RemoteError {
    move |source| RemoteError::Refused { call, source }
}

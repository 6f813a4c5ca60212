//! The last defence against memory that is taken away: a fault in a mapping of another process's
//! file does not end this process.
//!
//! An access to a page of a shared file raises SIGBUS in its thread if the page cannot be had: the
//! file was cut, or the system has no memory or no space for the page. The handler here looks the
//! address up among the registered mappings. If it is in one of them, the handler marks that
//! mapping as broken and puts a page of zeroes in place of the missing one. The access is repeated
//! and succeeds. The handler passes every other SIGBUS on to the previous action.
//!
//! ```text
//!   access ─► SIGBUS ─► registered? ── yes ─► mark, zero page there ─► the access again
//!                            └──────── no ──► previous action ───────► again; ends the process
//! ```
//!
//! # Safety model
//!
//! The handler runs in the thread that faults, in the middle of anything. It uses atomics, `mmap`,
//! `sigaction` and `raise` only: it allocates nothing, takes no lock and cannot panic. It replaces
//! pages of registered mappings alone. This process accesses these as atomic words through raw
//! pointers ([`crate::Mapping`]), and their words may change at any time, since another process
//! writes them: that they read as zero from now on is a change like any other. The page is there at
//! each moment, with the same permissions, so no pointer becomes invalid. `mmap` over a page is one
//! step for all threads.

use std::{
    ffi::c_void,
    io,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
};

use nix::libc;

/// The most mappings that can be registered at the same time.
const MOST: usize = 4096;
const PAGE: usize = 4096;
/// The states of an entry, in the low bits of its word. Above them stands the number of its uses.
const STATE: u64 = 3;
const FREE: u64 = 0;
const CHANGING: u64 = 1;
const VALID: u64 = 2;
const GENERATION: u64 = 4;

/// A registered range of addresses.
struct Entry {
    /// Generation and state. Written by the owner. The handler reads it before and after the range.
    state: AtomicU64,
    start: AtomicUsize,
    end: AtomicUsize,
    /// True if a page of the range could not be had. The handler sets it; the next owner clears it.
    broken: AtomicBool,
}

static ENTRIES: [Entry; MOST] = [const {
    Entry {
        state: AtomicU64::new(FREE),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
    }
}; MOST];

/// The action of SIGBUS before. Set before the handler is in place.
static PREVIOUS: OnceLock<Previous> = OnceLock::new();

/// Plain data for the kernel.
struct Previous(libc::sigaction);

/// A registered range; dropping it ends the registration.
#[derive(Debug)]
pub(crate) struct Guard {
    entry: &'static Entry,
}

// === impl Guard ===

impl Guard {
    /// Registers `length` bytes from `start` on. The caller ends the registration before it unmaps
    /// them.
    ///
    /// # Errors
    /// Too many mappings are registered.
    pub(crate) fn register(start: usize, length: usize) -> io::Result<Self> {
        for entry in &ENTRIES {
            let state = entry.state.load(Ordering::Relaxed);
            if state & STATE != FREE {
                continue;
            }
            let generation = (state & !STATE).wrapping_add(GENERATION);
            let taken = entry.state.compare_exchange(
                state,
                generation | CHANGING,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if taken.is_err() {
                continue;
            }
            // The handler sees CHANGING, or another generation, if it sees any of these.
            fence(Ordering::Release);
            entry.start.store(start, Ordering::Relaxed);
            entry
                .end
                .store(start.saturating_add(length), Ordering::Relaxed);
            entry.broken.store(false, Ordering::Relaxed);
            entry.state.store(generation | VALID, Ordering::Release);
            return Ok(Self { entry });
        }
        let message = format!("{MOST} mappings of other processes' memory are in use");
        Err(io::Error::other(message))
    }

    /// True once a page could not be had. From then on reads return zero, and writes have no
    /// effect.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.entry.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let state = self.entry.state.load(Ordering::Relaxed);
        self.entry
            .state
            .store(state & !STATE | FREE, Ordering::Release);
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        write!(f, "{start:#x}..{end:#x}")
    }
}

/// Puts the handler in place, once for the process. It stays.
///
/// # Errors
/// The error of `sigaction`.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let previous = change_action(None).map_err(errno)?;
        // This is the only place that sets it, and it runs once.
        let _ = PREVIOUS.set(Previous(previous));
        let mut action = previous;
        action.sa_sigaction = on_bus_error as *const () as usize;
        // On the thread's signal stack, if it has one, as the handlers of the standard library.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        change_action(Some(&action)).map_err(errno).map(drop)
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// Sets the action of SIGBUS, or leaves it for `None`, and returns the previous action.
fn change_action(action: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    // SAFETY: the structure consists of integers, a signal set of integers and an optional function
    // pointer: all zeroes are a value of it.
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    let new = action.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `new` is null or points to a borrowed structure, `previous` is a live local: the call
    // reads the one and writes the other. The handler that it sets is `on_bus_error`, which has the
    // signature that SA_SIGINFO asks for, or the previous one.
    let result = unsafe { libc::sigaction(libc::SIGBUS, new, &raw mut previous) };
    match result {
        0 => Ok(previous),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The handler.
extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a pointer to a structure that is valid, and not
    // shared, while the handler runs.
    let info = unsafe { &*info };
    let code = info.si_code;
    if code == libc::BUS_ADRERR || code == libc::BUS_MCEERR_AR {
        // SAFETY: with these codes the union in it holds the address of the fault.
        let address = unsafe { info.si_addr() };
        if mend(address.addr()) {
            return;
        }
    }
    pass_on(signal, code);
}

/// Marks the range that holds `address`, and puts zeroes there. False if no range holds it, or if
/// that failed.
fn mend(address: usize) -> bool {
    let Some(entry) = ENTRIES.iter().find(|entry| entry.holds(address)) else {
        return false;
    };
    // The mark is first: a reader of the zeroes then finds that they are ours.
    entry.broken.store(true, Ordering::Release);
    let page = (address & !(PAGE - 1)) as *mut c_void;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the page lies in a registered range. That is a mapping that a `Mapping` owns, and
    // which is not unmapped while the thread that faults accesses it. This process accesses nothing
    // but atomic words there, see the safety model.
    let at = unsafe { libc::mmap(page, PAGE, protection, flags, -1, 0) };
    at == page
}

impl Entry {
    /// True if the address is in the range. The range cannot change while a thread accesses an
    /// address in it, so a change that is seen here belongs to another range.
    fn holds(&self, address: usize) -> bool {
        let before = self.state.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        // Pairs with the fence of `register`.
        fence(Ordering::Acquire);
        let after = self.state.load(Ordering::Relaxed);
        before & STATE == VALID && before == after && (start..end).contains(&address)
    }
}

/// Passes a SIGBUS on to the previous action: restores it, so that the signal comes again, from the
/// same access or sent anew.
fn pass_on(signal: i32, code: i32) {
    let previous = PREVIOUS.get().map(|previous| &previous.0);
    let is_of_access = matches!(
        code,
        libc::BUS_ADRALN | libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR
    );
    let is_ignored = previous.is_some_and(|action| action.sa_sigaction == libc::SIG_IGN);
    if !is_of_access && is_ignored {
        return;
    }
    let restored = previous.is_some_and(|action| change_action(Some(action)).is_ok());
    if !restored {
        // SAFETY: it ends the process, whatever else goes on in it.
        unsafe { libc::abort() }
    }
    if !is_of_access {
        // SAFETY: it sends a signal to this thread and touches no memory. The signal is held back
        // until the handler returns.
        unsafe { libc::raise(signal) };
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use std::{
        fs::File,
        os::unix::process::ExitStatusExt as _,
        process::{Command, Stdio},
    };

    use memmap2::MmapOptions;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    /// Set for a copy of this program that is to end by SIGBUS.
    const ROLE: &str = "SHM_RING_FAULT_ROLE";

    /// The body of the processes of the next test; no test by itself.
    #[test]
    fn ends_when_asked() {
        let Ok(role) = std::env::var(ROLE) else {
            return;
        };
        install().unwrap();
        let file = File::from(memfd_create(c"other", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(2 * PAGE as u64).unwrap();
        let other = MmapOptions::new().len(2 * PAGE).map_raw(&file).unwrap();
        // The page in front of it is registered.
        let _guard = Guard::register(other.as_ptr().addr(), PAGE).unwrap();
        file.set_len(0).unwrap();
        if role == "access" {
            // SAFETY: the address is within the mapping.
            let second = unsafe { other.as_ptr().add(PAGE) };
            // SAFETY: it is aligned and mapped. The file is too short, so that the access raises
            // SIGBUS, which the test expects.
            let byte = unsafe { second.read_volatile() };
            unreachable!("read {byte}");
        }
        // The standard library's handler takes the first signal for an access that comes again.
        for _ in 0..3 {
            nix::sys::signal::raise(nix::sys::signal::SIGBUS).unwrap();
        }
        unreachable!("it lives");
    }

    #[test]
    fn a_signal_that_concerns_no_registered_page_does_what_it_did() {
        for role in ["access", "sent"] {
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "fault::tests::ends_when_asked"])
                .env(ROLE, role)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            assert_eq!(status.signal(), Some(libc::SIGBUS), "{role}");
        }
    }

    #[test]
    fn an_address_belongs_to_a_registered_range_while_it_is_registered() {
        let find = |address: usize| ENTRIES.iter().filter(|entry| entry.holds(address)).count();
        // No other test has such addresses.
        let guard = Guard::register(0x10_0000, 0x2000).unwrap();
        assert_eq!(
            [0xf_ffff, 0x10_0000, 0x10_1fff, 0x10_2000].map(find),
            [0, 1, 1, 0]
        );
        assert!(!guard.is_broken());
        drop(guard);
        assert_eq!(find(0x10_0000), 0);
    }
}

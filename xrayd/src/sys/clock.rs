//! The counter that trampolines read, and its ties to the clocks of the kernel.

use std::{
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use xray_trace::model::{Clock, ClockAnchor, Ticks};

/// The time stamp counter now.
pub(crate) fn ticks_now() -> Ticks {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has rdtsc. A kernel forbids it to user space (PR_SET_TSC)
        // only for a process that asks for that, and this process does not.
        Ticks(unsafe { core::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        Ticks(0)
    }
}

/// The ticks that so many readings of the counter take, with a chain of so many multiplications
/// after each. Each multiplication waits for the one before it, and the first one of a chain for
/// the reading. Whether this program is optimized does not matter.
pub(crate) fn ticks_of_readings(readings: u32, chain: u32) -> u64 {
    let begin = ticks_now();
    #[cfg(target_arch = "x86_64")]
    if readings > 0 {
        // SAFETY: registers are all that this changes. For rdtsc, see `ticks_now`.
        unsafe {
            core::arch::asm!(
                "2:",
                "rdtsc",
                "mov {left:e}, {chain:e}",
                "test {left:e}, {left:e}",
                "jz 4f",
                "3:",
                "imul eax, eax, 0x9e3779b1",
                "dec {left:e}",
                "jnz 3b",
                "4:",
                "dec {readings:e}",
                "jnz 2b",
                chain = in(reg) chain,
                left = out(reg) _,
                readings = inout(reg) readings => _,
                out("eax") _,
                out("edx") _,
                options(nomem, nostack),
            );
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (readings, chain);
    ticks_now().0.saturating_sub(begin.0)
}

/// The ticks of the counter in so much time. The first call takes some milliseconds.
///
/// # Errors
/// The clock cannot be read, or the counter stands still.
pub(crate) fn ticks_in(time: Duration) -> std::io::Result<u64> {
    let ticks = time.as_nanos() * u128::from(ticks_per_second()?) / 1_000_000_000;
    Ok(u64::try_from(ticks).unwrap_or(u64::MAX))
}

/// The nanoseconds that so many ticks of the counter take.
///
/// # Errors
/// As [`ticks_in`].
pub(crate) fn ns_of(ticks: u64) -> std::io::Result<u64> {
    let ns = u128::from(ticks) * 1_000_000_000;
    let ns = ns.checked_div(u128::from(ticks_per_second()?));
    Ok(ns.map_or(0, |ns| u64::try_from(ns).unwrap_or(u64::MAX)))
}

fn ticks_per_second() -> std::io::Result<u64> {
    /// Long enough for a rate with an error below a thousandth.
    const MEASURED: Duration = Duration::from_millis(2);
    static PER_SECOND: OnceLock<u64> = OnceLock::new();
    Ok(match PER_SECOND.get() {
        Some(per_second) => *per_second,
        None => {
            let first = now_anchor()?;
            thread::sleep(MEASURED);
            let clock = Clock::new(vec![first, now_anchor()?]);
            let measured = clock.frequency();
            let measured =
                measured.ok_or_else(|| std::io::Error::other("the counter stands still"))?;
            *PER_SECOND.get_or_init(|| measured)
        }
    })
}

/// True if the processor guarantees one rate of the counter in all power states. Source: Intel SDM
/// volume 3, 18.17.1; CPUID 0x80000007, EDX bit 8.
pub(crate) fn counter_is_invariant() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::__cpuid;
        const POWER: u32 = 0x8000_0007;
        __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx >> 8 & 1 == 1
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC` now.
///
/// # Errors
/// The error of `clock_gettime`.
pub(crate) fn monotonic_now() -> std::io::Result<u64> {
    Ok(nanoseconds(clock_gettime(ClockId::CLOCK_MONOTONIC)?))
}

/// The instant at which `CLOCK_MONOTONIC` showed this many nanoseconds.
pub(crate) fn instant_of(monotonic: u64) -> Option<Instant> {
    let ago = monotonic_now().ok()?.saturating_sub(monotonic);
    Instant::now().checked_sub(Duration::from_nanos(ago))
}

/// Counter, monotonic and wall time at one moment: the narrowest of five tries.
///
/// # Errors
/// The error of `clock_gettime`.
pub(crate) fn now_anchor() -> std::io::Result<ClockAnchor> {
    let mut best: Option<(u64, ClockAnchor)> = None;
    for _ in 0..5 {
        let before = ticks_now().0;
        let monotonic = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        let after = ticks_now().0;
        let wall = clock_gettime(ClockId::CLOCK_REALTIME)?;
        let width = after.saturating_sub(before);
        if best.is_none_or(|(narrowest, _)| width < narrowest) {
            let anchor = ClockAnchor {
                ticks: Ticks(before + width / 2),
                monotonic_ns: nanoseconds(monotonic),
                wall_ns: nanoseconds(wall),
            };
            best = Some((width, anchor));
        }
    }
    best.map(|(_, anchor)| anchor)
        .ok_or_else(|| std::io::Error::other("no reading of the clock succeeded"))
}

/// The time since the boot of the machine, in nanoseconds. 0 if the clock cannot be read.
pub(crate) fn since_boot_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, nanoseconds)
}

fn nanoseconds(time: nix::sys::time::TimeSpec) -> u64 {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(time.tv_nsec()).unwrap_or(0))
}

//! The daemon's own resource use, as the kernel counts it. Targets are not read.

use procfs::{ProcResult, WithCurrentSystemInfo as _, process::Process};

/// The standard process metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct OwnUse {
    /// Processor time of all threads.
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: u64,
    pub(super) virtual_bytes: u64,
    pub(super) threads: u64,
    /// Open descriptors, and the limit on them.
    pub(super) open_fds: u64,
    pub(super) max_fds: u64,
    /// Start time in seconds since the Unix epoch.
    pub(super) start_time: f64,
}

// === impl OwnUse ===

impl OwnUse {
    /// The current use.
    ///
    /// # Errors
    /// The error of reading `/proc`.
    #[expect(
        clippy::cast_precision_loss,
        reason = "seconds, of which microseconds matter"
    )]
    pub(super) fn now() -> ProcResult<Self> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let per_second = procfs::ticks_per_second().max(1);
        let seconds = |ticks: u64| ticks as f64 / per_second as f64;
        let limits = process.limits()?;
        let max_fds = match limits.max_open_files.soft_limit {
            procfs::process::LimitValue::Value(most) => most,
            procfs::process::LimitValue::Unlimited => u64::MAX,
        };
        let booted = procfs::boot_time_secs()?;
        Ok(Self {
            cpu_seconds: seconds(stat.utime.saturating_add(stat.stime)),
            resident_bytes: stat.rss_bytes().get(),
            virtual_bytes: stat.vsize,
            threads: u64::try_from(stat.num_threads).unwrap_or(0),
            open_fds: process.fd_count()? as u64,
            max_fds,
            start_time: booted as f64 + seconds(stat.starttime),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let own = OwnUse::now().unwrap();
        assert!(own.threads >= 1 && own.open_fds >= 3, "{own:?}");
        assert!(own.max_fds >= own.open_fds, "{own:?}");
        assert!(
            own.virtual_bytes > own.resident_bytes && own.resident_bytes > 0,
            "{own:?}"
        );
        let now = std::time::SystemTime::now();
        let now = now
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        assert!(
            own.start_time > 1e9 && own.start_time <= now + 1.0,
            "{own:?}"
        );
        let more = OwnUse::now().unwrap();
        assert!(more.cpu_seconds >= own.cpu_seconds);
    }
}

//! The programs themselves, as a user runs them: `xrayctl` alone, `xrayd` as a process, and both
//! together.
//!
//! Each test has a directory, a daemon and target programs of its own.

mod browser;
mod cli_attach;
mod cli_budget;
mod cli_count;
mod cli_ctf;
mod cli_documents;
mod cli_events;
mod cli_exit_codes;
mod cli_follow;
mod cli_hostile_files;
mod cli_kernel;
mod cli_launch;
mod cli_names;
mod cli_off;
mod cli_perf;
mod cli_profile;
mod cli_record;
mod cli_refusals;
mod cli_report_page;
mod cli_run_times;
mod cli_selectors;
mod cli_terminal;
mod cli_top;
mod cli_trigger;
mod cli_truth;
mod cli_values;
mod cli_view;
mod cli_watch;
mod daemon_access;
mod daemon_audit;
mod daemon_clients;
mod daemon_deadline;
mod daemon_ended;
mod daemon_endings;
mod daemon_faults;
mod daemon_kills;
mod daemon_metrics;
mod daemon_quotas;
mod daemon_recovery;
mod daemon_restart;
mod daemon_retained;
mod daemon_session;
mod daemon_shares;
mod daemon_sums;
mod daemon_users;
mod daemon_versions;
mod real;
mod runs;
mod scrape;
mod terminal;
mod trace;

use integration::scene;

//! Whether the machine's counter keeps time reliably.

use std::fs;

use super::outcome::Outcome;
use crate::sys::counter_is_invariant;

const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// Clock sources of the kernel that read the counter, directly or with a hypervisor's scale.
const FROM_COUNTER: [&str; 3] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];

/// The judgement of processor and kernel on the counter.
pub(super) fn check_counter() -> (Outcome, String) {
    let source = fs::read_to_string(SOURCE).unwrap_or_default();
    judge(counter_is_invariant(), source.trim())
}

fn judge(is_invariant: bool, source: &str) -> (Outcome, String) {
    let kept = match is_invariant {
        true => "constant rate",
        false => "the processor does not promise a constant rate",
    };
    match source {
        source if FROM_COUNTER.contains(&source) => {
            let outcome = match is_invariant {
                true => Outcome::Ok,
                false => Outcome::Warning,
            };
            (
                outcome,
                format!("{kept}; the kernel's clock uses the counter ({source})"),
            )
        }
        "" => (
            Outcome::Warning,
            format!("{kept}; xrayd cannot read the kernel's clock source"),
        ),
        other => (
            Outcome::Warning,
            format!(
                "{kept}; the kernel's clock uses {other} instead, as it does if the counter is \
                 unstable: durations may be wrong"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_trusted_if_processor_and_kernel_trust_it() {
        for (is_invariant, source, expected) in [
            (true, "tsc", Outcome::Ok),
            (true, "kvm-clock", Outcome::Ok),
            (false, "tsc", Outcome::Warning),
            (true, "hpet", Outcome::Warning),
            (true, "acpi_pm", Outcome::Warning),
            (true, "", Outcome::Warning),
        ] {
            let (outcome, finding) = judge(is_invariant, source);
            assert_eq!(outcome, expected, "{is_invariant} {source}: {finding}");
        }
    }
}

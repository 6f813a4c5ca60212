//! Statistics of calls, and the forms of numbers.

/// The statistics of the calls of an edge or a vertex.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Statistics {
    count: u64,
    min: f64,
    median: f64,
    p90: f64,
    p99: f64,
    max: f64,
    sum: f64,
}

/// The number as C++ streams print it in LLVM: `3.131839e-03`.
pub(super) fn exponential(number: f64) -> String {
    special(number).unwrap_or_else(|| crate::output::numbers::exponential(number))
}

/// The number with this many digits behind the point.
pub(super) fn fixed(number: f64, digits: usize) -> String {
    special(number).unwrap_or_else(|| format!("{number:.digits$}"))
}

/// The number in per cent.
pub(super) fn per_cent(number: f64) -> String {
    special(number * 100.0).unwrap_or_else(|| format!("{:.2}%", number * 100.0))
}

/// LLVM's words for what is no finite number.
fn special(number: f64) -> Option<String> {
    if number.is_nan() {
        Some("nan".to_owned())
    } else if number.is_infinite() {
        Some("INF".to_owned())
    } else {
        None
    }
}

/// The value at this place of sorted times, 0 if there is none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the place is a whole number within the length"
)]
pub(super) fn place(sorted: &[u64], place: f64) -> f64 {
    sorted.get(place as usize).copied().unwrap_or_default() as f64
}

// === impl Statistics ===

impl Statistics {
    /// Adds a call. A least time of 0 counts as none.
    pub(super) fn add(&mut self, ticks: u64) {
        let ticks = ticks.cast_signed() as f64;
        self.count += 1;
        if self.min > ticks || self.min == 0.0 {
            self.min = ticks;
        }
        if self.max < ticks {
            self.max = ticks;
        }
        self.sum += ticks;
    }

    /// Sets the percentiles, from all times of the calls.
    pub(super) fn set_percentiles(&mut self, times: &mut [u64]) {
        times.sort_unstable();
        let at = |numerator, denominator| {
            let place = self.count * numerator / denominator;
            let time = usize::try_from(place).ok().and_then(|at| times.get(at));
            time.copied().unwrap_or_default() as f64
        };
        (self.median, self.p90, self.p99) = (at(1, 2), at(9, 10), at(99, 100));
    }

    /// Raises each field to that of the other, if that one is greater.
    pub(super) fn raise(&mut self, other: &Self) {
        self.count = self.count.max(other.count);
        for (field, other) in self.times_mut().into_iter().zip(other.times()) {
            *field = field.max(other);
        }
    }

    /// Divides all times.
    pub(super) fn divide(&mut self, by: f64) {
        for time in self.times_mut() {
            *time /= by;
        }
    }

    /// The field with this name as a number, 0 for none.
    pub(super) fn number(&self, field: &str) -> f64 {
        let [min, median, p90, p99, max, sum] = self.times();
        match field {
            "count" => self.count as f64,
            "min" => min,
            "med" => median,
            "90p" => p90,
            "99p" => p99,
            "max" => max,
            "sum" => sum,
            _ => 0.0,
        }
    }

    /// The field with this name as a label.
    pub(super) fn text(&self, field: &str) -> String {
        match field {
            "none" => String::new(),
            "count" => self.count.to_string(),
            field => exponential(self.number(field)),
        }
    }

    fn times(&self) -> [f64; 6] {
        [
            self.min,
            self.median,
            self.p90,
            self.p99,
            self.max,
            self.sum,
        ]
    }

    fn times_mut(&mut self) -> [&mut f64; 6] {
        [
            &mut self.min,
            &mut self.median,
            &mut self.p90,
            &mut self.p99,
            &mut self.max,
            &mut self.sum,
        ]
    }
}

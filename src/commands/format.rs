//! In which form a command prints.
//!
//! A *format* is chosen once, where the arguments are read; a text is for people, JSON for programs and stable.

use std::fmt::Display;
use std::io::IsTerminal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Plain,
    /// A text with ANSI colours.
    Coloured,
}

impl Format {
    /// JSON if asked for; else a text, coloured on a terminal unless `NO_COLOR` is set.
    pub fn of(json: bool, output: &impl IsTerminal) -> Format {
        let wants_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        match json {
            true => Format::Json,
            false if wants_colour && output.is_terminal() => Format::Coloured,
            false => Format::Plain,
        }
    }

    pub fn bold(self, text: impl Display) -> String {
        self.painted("1", text)
    }

    pub fn dim(self, text: impl Display) -> String {
        self.painted("2", text)
    }

    pub fn red(self, text: impl Display) -> String {
        self.painted("31", text)
    }

    pub fn green(self, text: impl Display) -> String {
        self.painted("32", text)
    }

    /// `code`: the number of ANSI's "select graphic rendition".
    fn painted(self, code: &'static str, text: impl Display) -> String {
        match self {
            Format::Coloured => format!("\x1b[{code}m{text}\x1b[0m"),
            Format::Plain | Format::Json => text.to_string(),
        }
    }
}

/// Thousands parted by commas.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest binary unit that gives at least one, to a tenth.
pub fn bytes(n_bytes: u64) -> String {
    let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(size, _)| n_bytes >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", n_bytes as f64 / size as f64),
        None => format!("{n_bytes} bytes"),
    }
}

/// The beginning of a text, on one line.
pub fn shortened(text: &str) -> String {
    const CHARACTERS_MAX: usize = 80;
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// From a second on in seconds.
pub fn milliseconds(ms: f64) -> String {
    if ms < 1_000.0 { format!("{ms:.0} ms") } else { format!("{:.1} s", ms / 1_000.0) }
}

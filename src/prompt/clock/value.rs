//! Values: dates and times as people and programs write them, read from a run of numbers, names and units.
//!
//! A *run* goes on while its words belong to a date or time. Two times or two dates in one run are a span, not a
//! clock. What a run means is `reading`'s.

use super::reading::{Numeric, Reading, Time, set};
use super::words::{self, Cue, Word};

/// Words and numbers in one run: the longest form known has 15.
const N_TOKENS_MAX: usize = 32;
/// Characters of a note in brackets: longer ones say more than a zone or a weekday.
const NOTE_LEN_MAX: usize = 80;

/// The reading at byte `from`, and where its last part ends. `None`: no value, or two of a kind.
///
/// `is_hour`: the words before say that a time follows, so that `15.09` is one.
pub(super) fn read(text: &str, from: usize, is_hour: bool) -> Option<(Reading, usize)> {
    let mut reader =
        Reader { text, at: from, reading: Reading::default(), end: from, has_value: false, is_beyond_stop: false };
    reader.run(is_hour)?;
    if !reader.has_value {
        return None;
    }
    Some((reader.reading.settled()?, reader.end))
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    reading: Reading,
    /// Behind the last value or what belongs to it.
    end: usize,
    has_value: bool,
    /// Behind `2026 r.` a new sentence may have begun: then only a value makes what follows part of this one.
    is_beyond_stop: bool,
}

impl Reader<'_> {
    fn run(&mut self, is_hour: bool) -> Option<()> {
        let mut after_hour_word = is_hour;
        for _ in 0..N_TOKENS_MAX {
            self.skip_signs();
            let Some(c) = self.rest().chars().next() else { break };
            if c.is_ascii_digit() {
                let before = (self.at, self.reading);
                match self.number(after_hour_word) {
                    Some(true) => {}
                    // Behind an abbreviation's full stop, a number that fits nowhere begins the next sentence.
                    _ if self.is_beyond_stop => {
                        (self.at, self.reading) = before;
                        break;
                    }
                    Some(false) => break,
                    None => return None,
                }
                self.has_value = true;
                self.end = self.at;
                self.is_beyond_stop = false;
                after_hour_word = false;
                continue;
            }
            if c == '(' {
                // `(UTC)`, `(YYYY-MM-DD)`, `(Monday)`: says how to read the value, or says it again.
                let Some((len, _)) = self.rest().char_indices().take(NOTE_LEN_MAX).find(|(_, c)| *c == ')') else {
                    break;
                };
                self.at += len + 1;
                if self.has_value && !self.is_beyond_stop {
                    self.end = self.at;
                }
                continue;
            }
            if "+-−".contains(c) {
                // Signs between words were skipped: this one stands right before a digit.
                let Some(offset) = self.offset() else { break };
                set(&mut self.reading.offset_s, offset)?;
                self.end = self.at;
                continue;
            }
            if !c.is_alphabetic() {
                break;
            }
            if let Some((end, Cue::Now | Cue::Today | Cue::Label)) = words::cue(self.text, self.at)
                && words::word(self.text, self.at).is_none_or(|(word_end, word)| word_end < end || word == Word::Filler)
            {
                // `…, and today's date is …`
                self.at = end;
                after_hour_word = true;
                continue;
            }
            let Some((word_end, word)) = words::word(self.text, self.at) else { break };
            after_hour_word = word == Word::Hour;
            let is_short = self.text[self.at..word_end].chars().count() <= 4;
            match word {
                Word::Weekday(weekday) => self.reading.weekday = Some(self.reading.weekday.unwrap_or(weekday)),
                Word::Month(month) => set(&mut self.reading.month, i64::from(month))?,
                Word::MonthOrWeekday(month, weekday) => set(&mut self.reading.month_or_weekday, (month, weekday))?,
                Word::Utc => {
                    self.at = word_end;
                    let offset = self.offset().unwrap_or(0);
                    self.reading.offset_s = Some(self.reading.offset_s.unwrap_or(offset));
                    self.end = if self.is_beyond_stop { self.end } else { self.at };
                    continue;
                }
                Word::Continent if self.text[word_end..].starts_with('/') => {
                    let len = self.rest().find(|c: char| !(c.is_alphanumeric() || "/_-+".contains(c)));
                    self.at = len.map_or(self.text.len(), |len| self.at + len);
                    self.end = if self.is_beyond_stop { self.end } else { self.at };
                    continue;
                }
                Word::Zone if !self.has_value => break,
                Word::In if self.has_value && !self.is_value_at(word_end) => {
                    if !self.is_beyond_stop
                        && let Some(end) = place_end(self.text, word_end)
                    {
                        self.end = end;
                    }
                    break;
                }
                _ => {}
            }
            let is_value = matches!(word, Word::Weekday(_) | Word::Month(_) | Word::MonthOrWeekday(..));
            self.at = word_end;
            self.has_value |= is_value;
            if is_value || !self.is_beyond_stop && self.has_value {
                self.end = self.at;
                self.is_beyond_stop = self.is_beyond_stop && !is_value;
            }
            if is_short && self.rest().starts_with('.') {
                self.at += 1;
                self.is_beyond_stop = true;
            }
        }
        Some(())
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Marks that may stand between a cue, a date and a time. A sign in front of a digit may begin an offset.
    fn skip_signs(&mut self) {
        while let Some(c) = self.rest().chars().next() {
            let behind = &self.rest()[c.len_utf8()..];
            let is_offset =
                "+-−".contains(c) && self.reading.time.is_some() && behind.starts_with(|c: char| c.is_ascii_digit());
            let is_sign = c.is_whitespace() || ",:;=|>–—*_`\"'’[~@/-".contains(c);
            if is_offset || !is_sign {
                return;
            }
            self.at += c.len_utf8();
        }
    }

    /// Whether a value follows, a few small words apart: `a las 15:09`.
    fn is_value_at(&self, from: usize) -> bool {
        let mut at = skip_space(self.text, from);
        for _ in 0..3 {
            if self.text[at..].starts_with(|c: char| c.is_ascii_digit()) {
                return true;
            }
            match words::word(self.text, at) {
                Some((_, Word::Weekday(_) | Word::Month(_) | Word::Hour)) => return true,
                Some((end, Word::Filler | Word::In)) => at = skip_space(self.text, end),
                _ => return false,
            }
        }
        false
    }

    /// Whether a month's name follows, a few small words apart: `. November`, `th of November`.
    fn is_month_at(&self, from: usize) -> bool {
        let mut at = from;
        for _ in 0..3 {
            at = self.text.len() - self.text[at..].trim_start_matches(['.', ' ', '\u{a0}', '\u{202f}']).len();
            match words::word(self.text, at) {
                Some((_, Word::Month(_) | Word::MonthOrWeekday(..))) => return true,
                Some((end, Word::Filler)) => at = end,
                _ => return false,
            }
        }
        false
    }

    /// `Some(false)`: a number that is no part of a date or time. `None`: a second value of one kind.
    fn number(&mut self, after_hour_word: bool) -> Option<bool> {
        let text = self.text;
        let (number, len) = digits(text, self.at)?;
        let behind = self.at + len;
        if len == 4
            && let Some((month, day, end)) = two_more(text, behind, &[1, 2])
        {
            set(&mut self.reading.numeric, Numeric { year: Some(number), month, day, is_swappable: false })?;
            self.at = end;
            if self.rest().starts_with(['T', 't']) && digits(text, end + 1).is_some() {
                self.at += 1;
            }
            return Some(true);
        }
        if len == 8 && text[behind..].starts_with('T') {
            let numeric = Numeric {
                year: Some(number / 10_000),
                month: number / 100 % 100,
                day: number % 100,
                is_swappable: false,
            };
            set(&mut self.reading.numeric, numeric)?;
            self.at = behind + 1;
            let (clock, len) = digits(text, self.at)?;
            let (minutes, second) = match len {
                6 => (clock / 100, Some(clock % 100)),
                4 => (clock, None),
                _ => return Some(false),
            };
            self.at += len;
            return self.time(Time { hour: minutes / 100, minute: Some(minutes % 100), second });
        }
        if len == 10 || len == 13 {
            let stamp = if len == 13 { number / 1000 } else { number };
            set(&mut self.reading.stamp_s, stamp)?;
            self.at = behind;
            self.fraction();
            return Some(true);
        }
        if len == 4 {
            set(&mut self.reading.year, number)?;
            self.at = behind;
            return Some(true);
        }
        if len > 2 {
            return Some(false);
        }
        if let Some((first, second, end)) = two_more(text, behind, &[2, 4]) {
            // The first of the three is `number`; the last one is the year.
            let year = if second < 100 { 2000 + second } else { second };
            let is_swappable = !text[behind..].starts_with('.');
            set(&mut self.reading.numeric, Numeric { year: Some(year), month: first, day: number, is_swappable })?;
            self.at = end;
            return Some(true);
        }
        self.small_number(number, behind, after_hour_word)
    }

    /// One or two digits: the hour of a time or a day of a month.
    fn small_number(&mut self, number: i64, behind: usize, after_hour_word: bool) -> Option<bool> {
        let text = self.text;
        if text[behind..].starts_with(':')
            && let Some((minute, 2)) = digits(text, behind + 1)
        {
            self.at = behind + 3;
            let second = self.part(':');
            if second.is_some() {
                self.fraction();
            }
            return self.time(Time { hour: number, minute: Some(minute), second });
        }
        if let Some((end, Word::HourUnit)) = words::word(text, skip_space(text, behind)) {
            self.at = end;
            // `15 Uhr 09`, `15 ч. 09 мин.`
            let minute_at = skip_space(text, if self.rest().starts_with('.') { end + 1 } else { end });
            let minute = digits(text, minute_at).filter(|(_, len)| *len == 2);
            let mut second = None;
            if let Some((_, len)) = minute {
                self.at = minute_at + len;
                if let Some((end, Word::MinuteUnit)) = words::word(text, skip_space(text, self.at)) {
                    self.at = end;
                    let second_at = skip_space(text, end);
                    if let Some((value, len)) = digits(text, second_at).filter(|(_, len)| *len <= 2) {
                        second = Some(value);
                        self.at = second_at + len;
                        if let Some((end, Word::SecondUnit)) = words::word(text, skip_space(text, self.at)) {
                            self.at = end;
                        }
                    }
                }
            }
            return self.time(Time { hour: number, minute: minute.map(|(minute, _)| minute), second });
        }
        if let Some((hour, end)) = meridiem(text, behind, number) {
            self.at = end;
            return self.time(Time { hour, minute: None, second: None });
        }
        if text[behind..].starts_with('.') {
            // `15.09 Uhr`, `godz. 15.09`, `3.09 pm`
            if let Some((minute, 2)) = digits(text, behind + 1) {
                let end = behind + 3;
                let unit = words::word(text, skip_space(text, end)).map(|(_, word)| word);
                let is_day = text[end..].starts_with('.');
                if unit == Some(Word::HourUnit) || meridiem(text, end, number).is_some() || after_hour_word && !is_day {
                    self.at = end;
                    return self.time(Time { hour: number, minute: Some(minute), second: None });
                }
            }
            // `30.11.`: two more numbers were not there.
            let month_at = skip_space(text, behind + 1);
            if let Some((month, len @ 1..=2)) = digits(text, month_at) {
                let end = month_at + len;
                if !text[end..].starts_with('.') {
                    return Some(false);
                }
                set(&mut self.reading.numeric, Numeric { year: None, month, day: number, is_swappable: false })?;
                self.at = end + 1;
                return Some(true);
            }
        }
        // `Es ist 20:06 Uhr. 4 Gäste kommen.`
        let has_month = self.reading.month.or(self.reading.month_or_weekday.map(|(month, _)| month.into())).is_some();
        if self.is_beyond_stop && !has_month && !self.is_month_at(behind) {
            return Some(false);
        }
        set(&mut self.reading.day, number)?;
        self.at = behind;
        for suffix in ["st", "nd", "rd", "th", "er", "º", "°", "ª", "-го", "-е", "."] {
            if self.rest().starts_with(suffix) {
                let end = self.at + suffix.len();
                // A full stop belongs to the number only in front of a month's name.
                if suffix != "." || self.is_month_at(end) {
                    self.at = end;
                }
                break;
            }
        }
        Some(true)
    }

    fn time(&mut self, mut time: Time) -> Option<bool> {
        if let Some((hour, end)) = meridiem(self.text, self.at, time.hour) {
            time.hour = hour;
            self.at = end;
        }
        let is_valid = time.hour < 24 && time.minute.unwrap_or(0) < 60 && time.second.unwrap_or(0) <= 60;
        if !is_valid {
            return Some(false);
        }
        set(&mut self.reading.time, time)?;
        if self.rest().starts_with(['Z', 'z']) && words::word_end(self.text, self.at) == self.at + 1 {
            self.at += 1;
            set(&mut self.reading.offset_s, 0)?;
        }
        Some(true)
    }

    /// `:20` right here.
    fn part(&mut self, sign: char) -> Option<i64> {
        let (value, len) = digits(self.text, self.at + 1).filter(|_| self.rest().starts_with(sign))?;
        (len == 2).then(|| {
            self.at += 3;
            value
        })
    }

    fn fraction(&mut self) {
        if self.rest().starts_with(['.', ',']) {
            let len = self.rest()[1..].bytes().take_while(u8::is_ascii_digit).count();
            self.at += if len > 0 { 1 + len } else { 0 };
        }
    }

    /// `+01:00`, `+0100`, `-3`; in seconds.
    fn offset(&mut self) -> Option<i64> {
        let at = skip_space(self.text, self.at);
        let sign = self.text[at..].chars().next()?;
        if !"+-−".contains(sign) {
            return None;
        }
        let first = at + sign.len_utf8();
        let (value, len) = digits(self.text, first)?;
        let mut end = first + len;
        let minutes = match len {
            4 => value / 100 * 60 + value % 100,
            1 | 2 => {
                let minutes =
                    digits(self.text, end + 1).filter(|(_, len)| *len == 2 && self.text[end..].starts_with(':'));
                end += if minutes.is_some() { 3 } else { 0 };
                value * 60 + minutes.map_or(0, |(minutes, _)| minutes)
            }
            _ => return None,
        };
        if minutes > 14 * 60 {
            return None;
        }
        self.at = end;
        Some(if sign == '+' { minutes * 60 } else { -minutes * 60 })
    }
}

fn digits(text: &str, from: usize) -> Option<(i64, usize)> {
    let len = text.as_bytes().get(from..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (1..=18).contains(&len).then(|| text[from..from + len].parse().ok().map(|number| (number, len)))?
}

/// Two more numbers behind equal signs, `-11-30`, `. 11. 2026`: their values and their end. The first has one or two
/// digits; the second one a number out of `lens`.
fn two_more(text: &str, from: usize, lens: &[usize]) -> Option<(i64, i64, usize)> {
    let sign = text[from..].chars().next().filter(|c| "-./".contains(*c))?;
    let gap = |at: usize| if sign == '.' { skip_space(text, at) } else { at };
    let first_at = gap(from + 1);
    let (first, first_len) = digits(text, first_at)?;
    let second_from = first_at + first_len;
    if first_len > 2 || !text[second_from..].starts_with(sign) {
        return None;
    }
    let second_at = gap(second_from + 1);
    let (second, second_len) = digits(text, second_at)?;
    let end = second_at + second_len;
    (lens.contains(&second_len) && !text[end..].starts_with(':')).then_some((first, second, end))
}

fn skip_space(text: &str, from: usize) -> usize {
    let rest = text.get(from..).unwrap_or("");
    from + (rest.len() - rest.trim_start().len())
}

/// The hour of day that `hour` with the `am` or `pm` at `from` is, and where that ends.
fn meridiem(text: &str, from: usize, hour: i64) -> Option<(i64, usize)> {
    let mut at = skip_space(text, from);
    let is_pm = match text.as_bytes().get(at)? {
        b'a' | b'A' => false,
        b'p' | b'P' => true,
        _ => return None,
    };
    at += 1;
    let has_stop = text[at..].starts_with('.');
    if has_stop {
        at = skip_space(text, at + 1);
    }
    if !text[at..].starts_with(['m', 'M']) || words::word_end(text, at) != at + 1 {
        return None;
    }
    at += 1;
    // The last stop of `p.m.` may be the sentence's too: it is left to it at a line's end or before a capital letter.
    let next = text[at..].strip_prefix('.').map(|rest| rest.trim_start().chars().next());
    if has_stop && matches!(next, Some(Some(c)) if !c.is_uppercase()) {
        at += 1;
    }
    let hour = match (is_pm, hour) {
        (false, 12) => 0,
        (true, 1..=11) => hour + 12,
        _ => hour,
    };
    Some((hour, at))
}

/// Where `Berlin, Germany` behind an `in` ends: up to four words before the sentence's end.
fn place_end(text: &str, from: usize) -> Option<usize> {
    let len = text[from..].find(|c: char| !(c.is_alphabetic() || c == ' ' || ",/_-".contains(c)));
    let end = len.map_or(text.len(), |len| from + len);
    let n_words = text[from..end].split_whitespace().count();
    (1..=4).contains(&n_words).then(|| from + text[from..end].trim_end_matches([' ', ',']).len())
}

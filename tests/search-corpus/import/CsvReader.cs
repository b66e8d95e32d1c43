using System.Collections.Generic;
using System.IO;
using System.Text;

namespace Import
{
    /// <summary>Reads rows of comma separated values, quotes included.</summary>
    public class CsvReader
    {
        private readonly TextReader reader;

        public CsvReader(TextReader reader)
        {
            this.reader = reader;
        }

        public IEnumerable<List<string>> ReadRows()
        {
            string line;
            while ((line = reader.ReadLine()) != null)
            {
                yield return SplitLine(line);
            }
        }

        private static List<string> SplitLine(string line)
        {
            var fields = new List<string>();
            var field = new StringBuilder();
            bool quoted = false;
            foreach (char c in line)
            {
                if (c == '"') quoted = !quoted;
                else if (c == ',' && !quoted) { fields.Add(field.ToString()); field.Clear(); }
                else field.Append(c);
            }
            fields.Add(field.ToString());
            return fields;
        }
    }
}
